// Vectors of LANES elements of one type each, in GCC's vector extension; loads, stores and casts between them.
//
// A value of a program is one vector: F32, F64, I64, ... (all with the same number of lanes), or Bool. Half-precision
// types exist in memory only: their values are F32. Partial loads fill the missing lanes with zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TW_INLINE inline __attribute__((always_inline))
#define TW_LAMBDA __attribute__((always_inline))  // a lambda left out of line would keep what it captures in memory

// Bytes of the widest element type of a program's inner loop; a program may define it first to get registers of its size.
#ifndef TW_WIDEST
#define TW_WIDEST 4
#endif

namespace tilewright {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
constexpr int REGISTER_BYTES = 64;
#elif defined(__AVX2__)
constexpr int REGISTER_BYTES = 32;
#else
constexpr int REGISTER_BYTES = 16;
#endif
constexpr int LANES = REGISTER_BYTES / TW_WIDEST;

typedef float F32 __attribute__((vector_size(LANES * 4)));
typedef double F64 __attribute__((vector_size(LANES * 8)));
typedef int64_t I64 __attribute__((vector_size(LANES * 8)));
typedef int32_t I32 __attribute__((vector_size(LANES * 4)));
typedef int16_t I16 __attribute__((vector_size(LANES * 2)));
typedef int8_t I8 __attribute__((vector_size(LANES)));
typedef uint8_t U8 __attribute__((vector_size(LANES)));
typedef uint16_t U16 __attribute__((vector_size(LANES * 2)));
typedef uint32_t U32 __attribute__((vector_size(LANES * 4)));

// A truth value per lane: 0 or -1.
struct Bool {
  I32 lanes;
};

template <class V>
using element_t = std::remove_reference_t<decltype(std::declval<V&>()[0])>;

template <class V, class U>
TW_INLINE V bits(U value) {
  static_assert(sizeof(V) == sizeof(U));
  V result;
  std::memcpy(&result, &value, sizeof(V));
  return result;
}

template <class V>
TW_INLINE V splat(element_t<V> value) {
  return V{} + value;
}
// V{} + (-0.0) is +0.0, and the sum of a signalling value is quiet: floating constants go through subtraction of nothing.
template <>
TW_INLINE F32 splat<F32>(float value) {
  return value - F32{};
}
template <>
TW_INLINE F64 splat<F64>(double value) {
  return value - F64{};
}

TW_INLINE F32 f32(float value) { return splat<F32>(value); }
TW_INLINE F64 f64(double value) { return splat<F64>(value); }
TW_INLINE I64 i64(int64_t value) { return splat<I64>(value); }
TW_INLINE I32 i32(int32_t value) { return splat<I32>(value); }
TW_INLINE I16 i16(int16_t value) { return splat<I16>(value); }
TW_INLINE I8 i8(int8_t value) { return splat<I8>(value); }
TW_INLINE U8 u8(uint8_t value) { return splat<U8>(value); }
TW_INLINE Bool boolean(bool value) { return {splat<I32>(value ? -1 : 0)}; }

// 0, 1, 2, ... along the lanes.
TW_INLINE I32 iota() {
  I32 result{};
  for (int lane = 0; lane < LANES; ++lane) result[lane] = lane;
  return result;
}

// True from lane `first` to before `last`.
TW_INLINE Bool lanes_between(int first, int last) { return {(iota() >= first) & (iota() < last)}; }

// True in the first `count` lanes.
TW_INLINE Bool first_lanes(int count) { return {iota() < count}; }

// ---- Choosing ------------------------------------------------------------------------------------------------------

template <int BYTES>
struct Signed;
template <>
struct Signed<8> {
  using type = I64;
};
template <>
struct Signed<4> {
  using type = I32;
};
template <>
struct Signed<2> {
  using type = I16;
};
template <>
struct Signed<1> {
  using type = I8;
};
template <class V>
using signed_t = typename Signed<sizeof(element_t<V>)>::type;

// The lanes of a comparison's result as a Bool.
template <class M>
TW_INLINE Bool mask(M lanes) {
  if constexpr (std::is_same_v<M, I32>) {
    return {lanes};
  } else if constexpr (sizeof(element_t<M>) == 1) {
    return {__builtin_convertvector(__builtin_convertvector(lanes, I16), I32)};
  } else {
    return {__builtin_convertvector(lanes, I32)};
  }
}

template <class V>
TW_INLINE V where(Bool condition, V yes, V no) {
  if constexpr (std::is_same_v<V, Bool>) {
    return {(condition.lanes & yes.lanes) | (~condition.lanes & no.lanes)};
  } else if constexpr (sizeof(element_t<V>) == 4) {
    return condition.lanes ? yes : no;
  } else {
    return __builtin_convertvector(condition.lanes, signed_t<V>) ? yes : no;
  }
}

TW_INLINE bool any_lane(Bool b) {
  int32_t found = 0;
  for (int lane = 0; lane < LANES; ++lane) found |= b.lanes[lane];
  return found != 0;
}

TW_INLINE Bool operator&(Bool a, Bool b) { return {a.lanes & b.lanes}; }
TW_INLINE Bool operator|(Bool a, Bool b) { return {a.lanes | b.lanes}; }
TW_INLINE Bool operator^(Bool a, Bool b) { return {a.lanes ^ b.lanes}; }
TW_INLINE Bool operator~(Bool a) { return {~a.lanes}; }

// ---- Types in memory -----------------------------------------------------------------------------------------------

struct f16 {
  uint16_t pattern;
};
struct bf16 {
  uint16_t pattern;
};
struct b8 {
  uint8_t pattern;
};
struct e4m3 {  // 4 bits of exponent, 3 of mantissa, no infinities
  uint8_t pattern;
};

TW_INLINE F32 widen(U16 halves, bf16) {
  return bits<F32>(__builtin_convertvector(halves, U32) << 16);
}

// Rounds to nearest even; a NaN stays one.
TW_INLINE U16 narrow(F32 value, bf16) {
  const U32 pattern = bits<U32>(value);
  const U32 rounded = (pattern + 0x7fffu + ((pattern >> 16) & 1u)) >> 16;
  const U32 quiet = (pattern >> 16) | 0x40u;
  return __builtin_convertvector(value != value ? quiet : rounded, U16);
}

TW_INLINE F32 widen(U16 halves, f16) {
#if defined(__F16C__)
  if constexpr (LANES == 8) return bits<F32>(_mm256_cvtph_ps(bits<__m128i>(halves)));
#if defined(__AVX512F__)
  if constexpr (LANES == 16) return bits<F32>(_mm512_cvtph_ps(bits<__m256i>(halves)));
#endif
#endif
  F32 result{};
  for (int lane = 0; lane < LANES; ++lane) {
    _Float16 half;
    const uint16_t pattern = halves[lane];
    std::memcpy(&half, &pattern, 2);
    result[lane] = static_cast<float>(half);
  }
  return result;
}

TW_INLINE U16 narrow(F32 value, f16) {
#if defined(__F16C__)
  if constexpr (LANES == 8) return bits<U16>(_mm256_cvtps_ph(bits<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#if defined(__AVX512F__)
  if constexpr (LANES == 16) return bits<U16>(_mm512_cvtps_ph(bits<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#endif
#endif
  U16 result{};
  for (int lane = 0; lane < LANES; ++lane) {
    const _Float16 half = static_cast<_Float16>(value[lane]);
    uint16_t pattern;
    std::memcpy(&pattern, &half, 2);
    result[lane] = pattern;
  }
  return result;
}

// One byte a lane to wider types, by doubling: g++ 12 takes a direct conversion apart lane by lane.
template <class To>
TW_INLINE To from_bytes(U8 bytes) {
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, U16), I32), To);
}
template <class To>
TW_INLINE To from_bytes(I8 bytes) {
  return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, I16), I32), To);
}

// How a type lies in memory (`Raw`, one vector of it) and what its values are (`Value`).
template <class T>
struct Memory;

#define TW_PLAIN(T, V)                              \
  template <>                                       \
  struct Memory<T> {                                \
    using Value = V;                                \
    using Raw = V;                                  \
    static TW_INLINE V up(V raw) { return raw; }    \
    static TW_INLINE V down(V value) { return value; } \
  }
TW_PLAIN(float, F32);
TW_PLAIN(double, F64);
TW_PLAIN(int64_t, I64);
TW_PLAIN(int32_t, I32);
TW_PLAIN(int16_t, I16);
TW_PLAIN(int8_t, I8);
TW_PLAIN(uint8_t, U8);
#undef TW_PLAIN

template <class T>
struct HalfMemory {
  using Value = F32;
  using Raw = U16;
  static TW_INLINE F32 up(U16 raw) { return widen(raw, T{}); }
  static TW_INLINE U16 down(F32 value) { return narrow(value, T{}); }
};
template <>
struct Memory<f16> : HalfMemory<f16> {};
template <>
struct Memory<bf16> : HalfMemory<bf16> {};

template <>
struct Memory<e4m3> {
  using Value = F32;
  using Raw = U8;
  static constexpr uint32_t REBIAS = 120u << 23;  // from an exponent's bias of 127 to one of 7
  static TW_INLINE F32 up(U8 raw) {
    const U32 pattern = bits<U32>(from_bytes<I32>(raw)), size = pattern & 0x7fu;
    const F32 tiny = __builtin_convertvector(bits<I32>(size), F32) * 0x1p-9f;
    const U32 normal = (size << 20) + REBIAS;
    const U32 made = size < 8u ? bits<U32>(tiny) : size == 0x7fu ? normal | 0x7fc00000u : normal;
    return bits<F32>(made | (pattern & 0x80u) << 24);
  }
  // Rounds to nearest even; what would be more than 448 is 448, and a NaN stays one.
  static TW_INLINE U8 down(F32 value) {
    const U32 pattern = bits<U32>(value), size = pattern & 0x7fffffffu;
    const U32 normal = (size + 0x7ffffu + (size >> 20 & 1u) - REBIAS) >> 20;
    const U32 tiny = bits<U32>(bits<F32>(size) + 0x1p14f) - 0x46800000u;  // in steps of 2^-9
    const U32 large = size > 0x7f800000u ? U32{} + 0x7fu : U32{} + 0x7eu;
    const U32 made = size >= 0x43e00000u ? large : size < 0x3c800000u ? tiny : normal;
    return __builtin_convertvector(__builtin_convertvector(made | (pattern >> 24 & 0x80u), U16), U8);
  }
};

template <>
struct Memory<b8> {
  using Value = Bool;
  using Raw = U8;
  static TW_INLINE Bool up(U8 raw) { return {from_bytes<I32>(raw) != 0}; }
  static TW_INLINE U8 down(Bool value) { return __builtin_convertvector(value.lanes & 1, U8); }
};

template <class T>
TW_INLINE auto load(const T* from) {
  typename Memory<T>::Raw raw;
  std::memcpy(&raw, from, sizeof(raw));
  return Memory<T>::up(raw);
}

// The first `count` lanes; the others are zero.
template <class T>
TW_INLINE auto load(const T* from, int count) {
  using Raw = typename Memory<T>::Raw;
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4 && LANES == 16) {
    return Memory<T>::up(bits<Raw>(_mm512_maskz_loadu_epi32((1u << count) - 1u, from)));
  }
#endif
  Raw raw{};
  for (int lane = 0; lane < count; ++lane) std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), from + lane, sizeof(T));
  return Memory<T>::up(raw);
}

// LANES elements of which each lies STEP after the one before; none between the last and what follows it is touched.
template <int64_t STEP, class T>
TW_INLINE auto load_every(const T* from) {
  using Raw = typename Memory<T>::Raw;
  if constexpr (STEP == 1) {
    return load(from);
  } else if constexpr (STEP == 2) {
    Raw low, high;
    std::memcpy(&low, from, sizeof(low));
    std::memcpy(&high, from + LANES - 1, sizeof(high));
    signed_t<Raw> even{};
    for (int lane = 0; lane < LANES; ++lane) {
      even[lane] = static_cast<element_t<signed_t<Raw>>>(2 * lane < LANES ? 2 * lane : 2 * lane + 1);
    }
    return Memory<T>::up(__builtin_shuffle(low, high, even));
  } else {
#if defined(__AVX512F__) && !defined(__znver4__) && !defined(__znver5__)  // not tried on AMD
    if constexpr (sizeof(T) == 4 && LANES == 16 && STEP * LANES < 1 << 24) {
      const I32 apart = iota() * static_cast<int32_t>(STEP);
      __mmask16 all;  // g++ would know 0xffff, leave out the zeros, and wait for what was in the register before
      asm("kxnorw %0, %0, %0" : "=k"(all));
      const __m512i zeros = _mm512_setzero_si512();
      return Memory<T>::up(bits<Raw>(_mm512_mask_i32gather_epi32(zeros, all, bits<__m512i>(apart), from, 4)));
    }
#endif
    Raw raw;
    for (int lane = 0; lane < LANES; ++lane) std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), from + lane * STEP, sizeof(T));
    return Memory<T>::up(raw);
  }
}

// Those from lane `first` to before `last`; the others are zero.
template <int64_t STEP, class T>
TW_INLINE auto load_every(const T* from, int first, int last) {
  typename Memory<T>::Raw raw{};
  for (int lane = first; lane < last; ++lane) std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), from + lane * STEP, sizeof(T));
  return Memory<T>::up(raw);
}

template <class T>
TW_INLINE auto load_splat(const T* from) {
  typename Memory<T>::Raw raw;
  element_t<decltype(raw)> one;
  std::memcpy(&one, from, sizeof(one));
  return Memory<T>::up(splat<decltype(raw)>(one));
}

template <class T>
TW_INLINE void store(T* to, typename Memory<T>::Value value) {
  const auto raw = Memory<T>::down(value);
  std::memcpy(to, &raw, sizeof(raw));
}

template <class T>
TW_INLINE void store(T* to, typename Memory<T>::Value value, int count) {
  const auto raw = Memory<T>::down(value);
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4 && LANES == 16) {
    _mm512_mask_storeu_epi32(to, (1u << count) - 1u, bits<__m512i>(raw));
    return;
  }
#endif
  for (int lane = 0; lane < count; ++lane) std::memcpy(to + lane, reinterpret_cast<const char*>(&raw) + lane * sizeof(T), sizeof(T));
}

// The first `count` lanes, each STEP elements after the one before.
template <int64_t STEP, class T>
TW_INLINE void store_every(T* to, typename Memory<T>::Value value, int count) {
  const auto raw = Memory<T>::down(value);
  if (count == LANES) {
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; ++lane) std::memcpy(to + lane * STEP, reinterpret_cast<const char*>(&raw) + lane * sizeof(T), sizeof(T));
    return;
  }
  for (int lane = 0; lane < count; ++lane) std::memcpy(to + lane * STEP, reinterpret_cast<const char*>(&raw) + lane * sizeof(T), sizeof(T));
}

// A store that goes past the caches where the machine has one for this size; `to` is aligned to the vector.
template <class T>
TW_INLINE void stream(T* to, typename Memory<T>::Value value) {
  const auto raw = Memory<T>::down(value);
#if defined(__AVX512F__)
  if constexpr (sizeof(raw) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits<__m512i>(raw));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(raw) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits<__m256i>(raw));
    return;
  }
#endif
  std::memcpy(to, &raw, sizeof(raw));
}

// Streamed stores of this thread are visible to others after this.
TW_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// ---- Casts between values ------------------------------------------------------------------------------------------

template <class To, class From>
TW_INLINE To cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, Bool>) {
    return mask(value != From{});
  } else if constexpr (std::is_same_v<From, Bool>) {
    return __builtin_convertvector(value.lanes & 1, To);
  } else if constexpr (sizeof(element_t<From>) == 1 && sizeof(element_t<To>) >= 4) {
    return from_bytes<To>(value);
  } else if constexpr (std::is_floating_point_v<element_t<From>> && sizeof(element_t<To>) < 4) {
    return __builtin_convertvector(__builtin_convertvector(value, I32), To);  // wraps, as a cast through int does
  } else {
    return __builtin_convertvector(value, To);
  }
}

// The value as it is after a round trip through T's memory format.
template <class T>
TW_INLINE F32 rounded(F32 value) {
  return Memory<T>::up(Memory<T>::down(value));
}

}  // namespace tilewright
