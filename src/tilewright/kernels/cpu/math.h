// Elementary functions over vectors: branch-free in fp32 where they are common, through libm lane by lane otherwise.
//
// Errors of the fp32 functions written out here stay below 2 ulp (tests/unit/kernels/test_cpu_math.py measures them);
// NaN, infinities, signed zeros and subnormals come out as in libm. Polynomials are minimax fits made for these files
// (Lawson-weighted least squares over Chebyshev nodes). Nothing here relies on contraction: `fma` is asked for by name.
#pragma once

#include "vec.h"

namespace tilewright {

TW_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(__FMA__)
#if defined(__AVX512F__)
  if constexpr (LANES == 16) return bits<F32>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
#endif
  if constexpr (LANES == 8) return bits<F32>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
  if constexpr (LANES == 4) return bits<F32>(_mm_fmadd_ps(bits<__m128>(a), bits<__m128>(b), bits<__m128>(c)));
#endif
  F32 result{};
  for (int lane = 0; lane < LANES; ++lane) result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return result;
}

TW_INLINE F64 fma(F64 a, F64 b, F64 c) {
#if defined(__FMA__) && defined(__AVX512F__)
  if constexpr (LANES == 8) return bits<F64>(_mm512_fmadd_pd(bits<__m512d>(a), bits<__m512d>(b), bits<__m512d>(c)));
#endif
  F64 result{};
  for (int lane = 0; lane < LANES; ++lane) result[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
  return result;
}

// ((c[n-1] x + c[n-2]) x + ...) x + c[0]
template <int N>
TW_INLINE F32 polynomial(F32 x, const float (&c)[N]) {
  F32 sum = f32(c[N - 1]);
  for (int k = N - 2; k >= 0; --k) sum = fma(sum, x, f32(c[k]));
  return sum;
}

#define TW_BY_LANE(name, scalar)                                          \
  template <class V>                                                      \
  TW_INLINE V name(V x) {                                                 \
    V result{};                                                           \
    for (int lane = 0; lane < LANES; ++lane) result[lane] = scalar(x[lane]); \
    return result;                                                        \
  }
#define TW_BY_LANE_2(name, scalar)                                        \
  template <class V>                                                      \
  TW_INLINE V name(V x, V y) {                                            \
    V result{};                                                           \
    for (int lane = 0; lane < LANES; ++lane) result[lane] = scalar(x[lane], y[lane]); \
    return result;                                                        \
  }

TW_BY_LANE(exp, std::exp)
TW_BY_LANE(expm1, std::expm1)
TW_BY_LANE(log, std::log)
TW_BY_LANE(log1p, std::log1p)
TW_BY_LANE(exp2, std::exp2)
TW_BY_LANE(log2, std::log2)
TW_BY_LANE(log10, std::log10)
TW_BY_LANE(sin, std::sin)
TW_BY_LANE(cos, std::cos)
TW_BY_LANE(tan, std::tan)
TW_BY_LANE(asin, std::asin)
TW_BY_LANE(acos, std::acos)
TW_BY_LANE(atan, std::atan)
TW_BY_LANE(sinh, std::sinh)
TW_BY_LANE(cosh, std::cosh)
TW_BY_LANE(tanh, std::tanh)
TW_BY_LANE(asinh, std::asinh)
TW_BY_LANE(acosh, std::acosh)
TW_BY_LANE(atanh, std::atanh)
TW_BY_LANE(erf, std::erf)
TW_BY_LANE(erfc, std::erfc)
TW_BY_LANE(sqrt_by_lane, std::sqrt)
TW_BY_LANE(floor_by_lane, std::floor)
TW_BY_LANE(ceil_by_lane, std::ceil)
TW_BY_LANE(trunc_by_lane, std::trunc)
TW_BY_LANE(round_by_lane, std::nearbyint)
TW_BY_LANE_2(pow, std::pow)
TW_BY_LANE_2(atan2, std::atan2)
TW_BY_LANE_2(fmod, std::fmod)

// ---- Roots and rounding --------------------------------------------------------------------------------------------

template <class V>
TW_INLINE V sqrt(V x) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<V, F32> && LANES == 16) return bits<V>(_mm512_sqrt_ps(bits<__m512>(x)));
  if constexpr (std::is_same_v<V, F64> && LANES == 8) return bits<V>(_mm512_sqrt_pd(bits<__m512d>(x)));
#endif
#if defined(__AVX__)
  if constexpr (std::is_same_v<V, F32> && LANES == 8) return bits<V>(_mm256_sqrt_ps(bits<__m256>(x)));
  if constexpr (std::is_same_v<V, F64> && LANES == 4) return bits<V>(_mm256_sqrt_pd(bits<__m256d>(x)));
#endif
  return sqrt_by_lane(x);
}

template <class V>
TW_INLINE V rsqrt(V x) {
  return element_t<V>(1) / sqrt(x);
}

// The whole number that `MODE` (an immediate of the rounding instruction) makes of each lane.
#if defined(__AVX512F__)
#define TW_ROUNDING(name, MODE)                                                                                       \
  template <class V>                                                                                                  \
  TW_INLINE V name(V x) {                                                                                             \
    if constexpr (std::is_same_v<V, F32> && LANES == 16) return bits<V>(_mm512_roundscale_ps(bits<__m512>(x), MODE)); \
    if constexpr (std::is_same_v<V, F32> && LANES == 8) return bits<V>(_mm256_round_ps(bits<__m256>(x), MODE));       \
    return name##_by_lane(x);                                                                                         \
  }
#elif defined(__AVX2__)
#define TW_ROUNDING(name, MODE)                                                                                 \
  template <class V>                                                                                            \
  TW_INLINE V name(V x) {                                                                                       \
    if constexpr (std::is_same_v<V, F32> && LANES == 8) return bits<V>(_mm256_round_ps(bits<__m256>(x), MODE)); \
    return name##_by_lane(x);                                                                                   \
  }
#else
#define TW_ROUNDING(name, MODE)   \
  template <class V>              \
  TW_INLINE V name(V x) {         \
    return name##_by_lane(x);     \
  }
#endif
TW_ROUNDING(floor, 0x9)
TW_ROUNDING(ceil, 0xa)
TW_ROUNDING(trunc, 0xb)
TW_ROUNDING(round, 0x8)
#undef TW_ROUNDING

// ---- Exponential family --------------------------------------------------------------------------------------------

// 2^n for -126 <= n <= 127.
TW_INLINE F32 power_of_two(I32 n) { return bits<F32>((n + 127) << 23); }

struct Reduced {
  F32 remainder;  // x - count * step, |remainder| <= step / 2
  F32 whole;      // count as a float
  I32 count;
};

// x 2^count for |count| <= 252 and 1/2 < x < 2, rounded once; the result is subnormal in the lanes where y < least. There
// it is made as a whole number of 2^-149, which is the pattern of a subnormal: a product that came out below 2^-126
// would cost an Intel core some 150 cycles for its vector.
TW_INLINE F32 scale(F32 x, Reduced r, F32 y, float least) {
#if defined(__AVX512VL__)
  if constexpr (LANES == 16) {
    const __mmask16 tiny = _mm512_cmp_ps_mask(bits<__m512>(y), _mm512_set1_ps(least), _CMP_LT_OQ);
    const __m512 whole = bits<__m512>(r.whole), raised = _mm512_mask_add_ps(whole, tiny, whole, _mm512_set1_ps(149.0f));
    const __m512 scaled = _mm512_scalef_ps(bits<__m512>(x), raised);
    return bits<F32>(_mm512_mask_cvtps_epi32(bits<__m512i>(scaled), tiny, scaled));
  }
  if constexpr (LANES == 8) {
    const __mmask8 tiny = _mm256_cmp_ps_mask(bits<__m256>(y), _mm256_set1_ps(least), _CMP_LT_OQ);
    const __m256 whole = bits<__m256>(r.whole), raised = _mm256_mask_add_ps(whole, tiny, whole, _mm256_set1_ps(149.0f));
    const __m256 scaled = _mm256_scalef_ps(bits<__m256>(x), raised);
    return bits<F32>(_mm256_mask_cvtps_epi32(bits<__m256i>(scaled), tiny, scaled));
  }
#endif
  const I32 tiny = y < least;
  const I32 count = r.count + (tiny & 149), half = count >> 1;
  const F32 scaled = x * power_of_two(half) * power_of_two(count - half);
  const I32 unit = tiny & 0x4b000000;  // 2^23: from there to 2^24 floats are whole numbers, told by their patterns' low bits
  return bits<F32>(bits<I32>(scaled + bits<F32>(unit)) - unit);
}

// x = count ln 2 + remainder, for |x| < 200.
TW_INLINE Reduced reduce_by_log_2(F32 x) {
  const F32 shifter = f32(0x1.8p23f);
  const F32 shifted = fma(x, f32(0x1.715476p+0f), shifter);
  const F32 count = shifted - shifter;
  F32 remainder = fma(count, f32(-0x1.62e430p-1f), x);
  remainder = fma(count, f32(0x1.05c610p-29f), remainder);
  return {remainder, count, bits<I32>(shifted) - bits<I32>(shifter)};
}

TW_INLINE F32 clamp(F32 x, float low, float high) {  // keeps NaN
#if defined(__AVX512F__)
  if constexpr (LANES == 16) {
    const __m512 raised = _mm512_max_ps(_mm512_set1_ps(low), bits<__m512>(x));
    return bits<F32>(_mm512_min_ps(_mm512_set1_ps(high), raised));
  }
#endif
#if defined(__AVX__)
  if constexpr (LANES == 8) {
    const __m256 raised = _mm256_max_ps(_mm256_set1_ps(low), bits<__m256>(x));
    return bits<F32>(_mm256_min_ps(_mm256_set1_ps(high), raised));
  }
#endif
  x = x < low ? f32(low) : x;
  return x > high ? f32(high) : x;
}

// exp(r) = 1 + r + r^2 P(r)
static constexpr float EXP_TAIL[] = {0x1.fffffcp-2f, 0x1.555482p-3f, 0x1.55593cp-5f, 0x1.1245c8p-7f, 0x1.6a107cp-10f};

TW_INLINE F32 exp(F32 x) {
  const F32 y = clamp(x, -104.0f, 89.0f);
  const Reduced r = reduce_by_log_2(y);
  const F32 tail = fma(r.remainder * r.remainder, polynomial(r.remainder, EXP_TAIL), r.remainder);
  return scale(tail + 1.0f, r, y, -0x1.5d589ep6f);  // the last above the logarithm of 2^-126
}

// exp for |x| < 87, where neither argument nor result needs care; NaN passes.
TW_INLINE F32 exp_moderate(F32 x) {
  const Reduced r = reduce_by_log_2(x);
  const F32 tail = fma(r.remainder * r.remainder, polynomial(r.remainder, EXP_TAIL), r.remainder);
  return (tail + 1.0f) * power_of_two(r.count);
}

TW_INLINE F32 expm1(F32 x) {
  static constexpr float P[] = {0x1p-1f, 0x1.555556p-3f, 0x1.5554a0p-5f, 0x1.111088p-7f, 0x1.6d82b0p-10f, 0x1.a1aep-13f};
  const Reduced r = reduce_by_log_2(clamp(x, -18.0f, 89.0f));
  const F32 part = fma(r.remainder * r.remainder, polynomial(r.remainder, P), r.remainder);
  // 2^n (part + 1) - 1, in two halves so that 2^128 does not overflow early
  const I32 half = r.count >> 1;
  const F32 low = power_of_two(half), high = power_of_two(r.count - half);
  const F32 unit = low * high;
  const F32 value = r.count > 127 ? (part + 1.0f) * low * high : fma(part, unit, unit - 1.0f);
  return x == 0.0f ? x : value;
}

TW_INLINE F32 exp2(F32 x) {
  const F32 y = clamp(x, -151.0f, 129.0f);
  const F32 shifter = f32(0x1.8p23f);
  const F32 shifted = y + shifter;
  const F32 whole = shifted - shifter;
  const F32 fraction = y - whole;
  const F32 high = fraction * 0x1.62e430p-1f;
  const F32 remainder = fma(fraction, f32(-0x1.05c610p-29f), high);
  const F32 tail = fma(remainder * remainder, polynomial(remainder, EXP_TAIL), remainder);
  return scale(tail + 1.0f, {remainder, whole, bits<I32>(shifted) - bits<I32>(shifter)}, y, -126.0f);
}

TW_INLINE F32 sigmoid(F32 x) { return 1.0f / (1.0f + exp(-x)); }
TW_INLINE F64 sigmoid(F64 x) { return 1.0 / (1.0 + exp<F64>(-x)); }

TW_INLINE F32 copy_sign(F32 magnitude, F32 sign) {
  return bits<F32>((bits<U32>(magnitude) & 0x7fffffffu) | (bits<U32>(sign) & 0x80000000u));
}
TW_INLINE F32 absolute(F32 x) { return bits<F32>(bits<U32>(x) & 0x7fffffffu); }

TW_INLINE F32 tanh(F32 x) {
  static constexpr float NEAR[] = {-0x1.555552p-2f, 0x1.110ffap-3f,  -0x1.b9d994p-5f,
                                   0x1.62a9a8p-6f,  -0x1.07b04ap-7f, 0x1.099c9ep-9f};
  const F32 magnitude = absolute(x);
  const F32 square = x * x;
  const F32 near = fma(x * square, polynomial(square, NEAR), x);
  const F32 far = 1.0f - 2.0f / (exp_moderate(2.0f * (magnitude > 10.0f ? f32(10.0f) : magnitude)) + 1.0f);
  return copy_sign(magnitude < 0.6f ? near : far, x);
}

TW_INLINE F32 sinh(F32 x) {
  const F32 grown = expm1(absolute(x));
  const F32 small = 0.5f * (grown + grown / (grown + 1.0f));
  const F32 half = exp(0.5f * absolute(x));
  return copy_sign(absolute(x) > 80.0f ? 0.5f * half * half : small, x);
}

TW_INLINE F32 cosh(F32 x) {
  const F32 half = exp(0.5f * absolute(x));
  const F32 grown = exp(absolute(x));
  return absolute(x) > 80.0f ? 0.5f * half * half : 0.5f * (grown + 1.0f / grown);
}

// ---- Logarithms ----------------------------------------------------------------------------------------------------

struct Split {
  F32 fraction;  // in [sqrt(1/2) - 1, sqrt(2) - 1]: x = (1 + fraction) 2^exponent
  F32 exponent;
};

TW_INLINE Split split(F32 x) {
  const auto tiny = x < 0x1p-126f;
  const F32 y = tiny ? x * 0x1p24f : x;
  const I32 shifted = bits<I32>(y) - 0x3f3504f3;  // the pattern of sqrt(1/2): what is below borrows from the exponent
  const I32 exponent = shifted >> 23;
  const F32 mantissa = bits<F32>(bits<I32>(y) - (exponent << 23));
  const F32 whole = __builtin_convertvector(exponent, F32);
  return {mantissa - 1.0f, tiny ? whole - 24.0f : whole};
}

// log(1 + f) - f for f in split's range.
TW_INLINE F32 log_tail(F32 f) {
  static constexpr float P[] = {0x1.555546p-2f,  -0x1.000006p-2f, 0x1.99a4f6p-3f,  -0x1.555cccp-3f, 0x1.23322ap-3f,
                                -0x1.fc07cap-4f, 0x1.e728a6p-4f,  -0x1.deffe2p-4f, 0x1.14c9d8p-4f};
  const F32 square = f * f;
  return fma(square, f32(-0.5f), square * f * polynomial(f, P));
}

// The logarithm's values outside the positive finite numbers.
TW_INLINE F32 log_edges(F32 x, F32 value) {
  value = x == 0.0f ? f32(-INFINITY) : value;
  value = x < 0.0f ? f32(NAN) : value;
  return (x == INFINITY) | (x != x) ? x : value;
}

TW_INLINE F32 log(F32 x) {
  const Split s = split(x);
  const F32 low = fma(s.exponent, f32(-0x1.05c610p-29f), log_tail(s.fraction));
  return log_edges(x, fma(s.exponent, f32(0x1.62e430p-1f), s.fraction + low));
}

TW_INLINE F32 log1p(F32 x) {
  const F32 sum = 1.0f + x;
  const F32 lost = sum > 2.0f ? 1.0f - (sum - x) : x - (sum - 1.0f);  // exact: 1 + x = sum + lost
  const Split s = split(sum);
  const F32 low = fma(s.exponent, f32(-0x1.05c610p-29f), log_tail(s.fraction)) + lost / sum;
  const F32 value = fma(s.exponent, f32(0x1.62e430p-1f), s.fraction + low);
  return absolute(x) < 0x1p-24f ? x : log_edges(sum, value);
}

// (s.exponent + log(1 + fraction) * unit) with the product's head and tail kept apart.
TW_INLINE F32 log_in_unit(F32 x, float unit_high, float unit_low, float of_two_high, float of_two_low) {
  const Split s = split(x);
  const F32 tail = log_tail(s.fraction);
  const F32 head = s.fraction * unit_high;
  const F32 error = fma(s.fraction, f32(unit_high), -head);
  const F32 low = fma(s.fraction, f32(unit_low), fma(tail, f32(unit_high), fma(s.exponent, f32(of_two_low), error)));
  return log_edges(x, fma(s.exponent, f32(of_two_high), head + low));
}

TW_INLINE F32 log2(F32 x) { return log_in_unit(x, 0x1.715476p+0f, 0x1.4ae0cp-26f, 1.0f, 0.0f); }
TW_INLINE F32 log10(F32 x) { return log_in_unit(x, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f, 0x1.344136p-2f, -0x1.ec10c0p-27f); }

// ---- Error function ------------------------------------------------------------------------------------------------

TW_INLINE F32 erf(F32 x) {
  static constexpr float NEAR[] = {0x1.06eba8p-3f,  -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90cp-6f,
                                   0x1.5405b2p-8f, -0x1.a3f6fcp-11f, 0x1.496a28p-14f};
  static constexpr float FAR[] = {-0x1.0ce486p-12f, -0x1.209f00p+0f, -0x1.467380p-1f, -0x1.a835d4p-4f,
                                  0x1.694cecp-6f,  -0x1.89282ep-9f, 0x1.919d84p-13f};
  const F32 magnitude = absolute(x);
  const F32 bounded = magnitude > 4.0f ? f32(4.0f) : magnitude;
  const F32 far = 1.0f - exp_moderate(polynomial(bounded, FAR));
  return magnitude < 1.0f ? fma(x, polynomial(x * x, NEAR), x) : copy_sign(far, x);
}

// ---- Circle --------------------------------------------------------------------------------------------------------

// sin(x + quarters pi/2) by three-part reduction; exact enough for |x| <= 2^15, beyond that libm takes the vector.
template <int QUARTERS>
TW_INLINE F32 sine(F32 x) {
  static constexpr float S[] = {-0x1.555556p-3f, 0x1.111108p-7f, -0x1.a00ec4p-13f, 0x1.6ca4e2p-19f};
  static constexpr float C[] = {0x1.555556p-5f, -0x1.6c16b8p-10f, 0x1.a01066p-16f, -0x1.2404a0p-22f};
  const F32 shifter = f32(0x1.8p23f);
  const F32 shifted = fma(x, f32(0x1.45f306p-1f), shifter);
  const F32 count = shifted - shifter;
  F32 r = fma(count, f32(-0x1.921fb4p+0f), x);
  const F32 middle = count * -0x1.4442d0p-24f;
  const F32 sum = r + middle;
  const F32 lost = middle - (sum - r) + fma(count, f32(-0x1.4442d0p-24f), -middle);
  r = sum;
  const F32 low = fma(count, f32(-0x1.846988p-48f), lost);
  const I32 quadrant = bits<I32>(shifted) + QUARTERS;
  const F32 square = r * r;
  const F32 sin_part = fma(r * square, polynomial(square, S), low) + r;
  const F32 cos_part = fma(square * square, polynomial(square, C), fma(-r, low, fma(square, f32(-0.5f), f32(1.0f))));
  const F32 value = (quadrant & 1) == 0 ? sin_part : cos_part;
  return bits<F32>(bits<I32>(value) ^ ((quadrant & 2) << 30));
}

TW_INLINE F32 sin(F32 x) {
  if (any_lane({absolute(x) > 0x1p15f})) return sin<F32>(x);
  return x == 0.0f ? x : sine<0>(x);
}

TW_INLINE F32 cos(F32 x) {
  if (any_lane({absolute(x) > 0x1p15f})) return cos<F32>(x);
  return sine<1>(x);
}

// ---- What the operations of a program mean ---------------------------------------------------------------------------

template <class V>
TW_INLINE V abs(V x) {
  if constexpr (std::is_same_v<V, F32>) {
    return absolute(x);
  } else {
    return x < V{} ? V{} - x : (x == V{} ? V{} : x);
  }
}
template <class V>
TW_INLINE V sign(V x) {
  if constexpr (std::is_same_v<V, Bool>) {
    return x;
  } else {
    const V one = splat<V>(element_t<V>(1));
    V result = x > V{} ? one : V{};
    if constexpr (!std::is_same_v<V, U8>) result = x < V{} ? V{} - one : result;
    return result;  // NaN gives 0, as torch's sign does
  }
}

// Extremes that propagate NaN; of two NaNs the first.
template <class V>
TW_INLINE V maximum(V a, V b) {
  return (a > b) | (a != a) ? a : b;
}
template <class V>
TW_INLINE V minimum(V a, V b) {
  return (a < b) | (a != a) ? a : b;
}
TW_INLINE Bool maximum(Bool a, Bool b) { return a | b; }
TW_INLINE Bool minimum(Bool a, Bool b) { return a & b; }

// Remainder with the sign of the divisor, and the quotient rounded down: Python's, as in torch.
template <class V>
TW_INLINE V remainder(V a, V b) {
  if constexpr (std::is_floating_point_v<element_t<V>>) {
    const V rest = fmod(a, b);
    return (rest != V{}) & ((rest < V{}) != (b < V{})) ? rest + b : rest;
  } else {
    const V rest = a % b;
    return (rest != V{}) & ((rest < V{}) != (b < V{})) ? rest + b : rest;
  }
}
template <class V>
TW_INLINE V floor_divide(V a, V b) {
  if constexpr (std::is_floating_point_v<element_t<V>>) {
    const V rest = fmod(a, b);
    V quotient = (a - rest) / b;
    quotient = (rest != V{}) & ((rest < V{}) != (b < V{})) ? quotient - element_t<V>(1) : quotient;
    const V down = floor(quotient);
    V result = quotient - down > element_t<V>(0.5) ? down + element_t<V>(1) : down;
    result = quotient == V{} ? V{} * (a / b) : result;  // keeps the sign of zero
    return b == V{} ? a / b : result;
  } else {
    const V quotient = a / b, rest = a % b;
    return (rest != V{}) & ((rest < V{}) != (b < V{})) ? quotient - element_t<V>(1) : quotient;
  }
}
template <class V>
TW_INLINE V whole_fmod(V a, V b) {
  return a % b;
}
// Integer power; a negative exponent gives 1/base^n truncated: 0 except for bases 1 and -1.
template <class V>
TW_INLINE V whole_pow(V base, V exponent) {
  V result{};
  for (int lane = 0; lane < LANES; ++lane) {
    element_t<V> b = base[lane], e = exponent[lane], r = 1;
    if (e < 0) {
      r = b == 1 ? 1 : (b == element_t<V>(-1) ? ((e & 1) ? -1 : 1) : 0);
    } else {
      for (; e; e >>= 1, b *= b) r = (e & 1) ? r * b : r;
    }
    result[lane] = r;
  }
  return result;
}

template <class V>
TW_INLINE Bool isnan(V x) {
  return mask(x != x);
}
template <class V>
TW_INLINE Bool isinf(V x) {
  if constexpr (std::is_floating_point_v<element_t<V>>) {
    const auto infinity = std::numeric_limits<element_t<V>>::infinity();
    return mask((x == infinity) | (x == -infinity));
  } else {
    return boolean(false);
  }
}

#undef TW_BY_LANE
#undef TW_BY_LANE_2

}  // namespace tilewright
