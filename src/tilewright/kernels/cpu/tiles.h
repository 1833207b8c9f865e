// Pointwise programs whose operands are not all contiguous along the lanes: the domain goes by in tiles, and such operands
// are packed tile by tile into a buffer that stays in the first-level cache, read along whatever dimension suits them.
#pragma once

#include "walk.h"

namespace tilewright {

template <class P>
class Tiles {
  static constexpr int64_t TILE = 4096;  // points of 4 bytes and more; of fewer, four times as many
  static constexpr int64_t MOST_ROWS = 64;
  static constexpr int64_t BUFFER_BYTES = TILE * 8;

  Arguments<P> arguments;
  Nest<P> rest;              // the loops around a tile's two
  Loop<P> across, along;     // a tile's rows; what the lanes run along
  int64_t rows, width;       // of a tile
  int64_t bands, stretches;  // tiles along each
  bool packed[P::TENSORS];
  bool streaming;

 public:
  Tiles(const Arguments<P>& given, bool stream) : arguments(given) {
    along = loop(P::VECTOR);
    for (int t = 0; t < P::TENSORS; ++t) packed[t] = along.stride[t] != 0 && along.stride[t] != P::bytes[t];
    for (int t = 0; t < P::TENSORS; ++t) packed[t] = packed[t] || (along.stride[t] == 0 && P::shape[t][P::VECTOR] > 1);
    const int other = partner();
    across = other < 0 ? Loop<P>{1, {}, P::VECTOR} : loop(other);
    unsigned taken = 1u << P::VECTOR | (other < 0 ? 0u : 1u << other);
    taken |= widened(along, taken);
    if (other >= 0) taken |= widened(across, taken);
    for (int d = 0; d < P::RANK; ++d) {
      if (!(taken >> d & 1)) rest.push(arguments, d);
    }
    int widest = 1;
    for (int t = 0; t < P::TENSORS; ++t) widest = packed[t] && P::bytes[t] > widest ? P::bytes[t] : widest;
    const int64_t finer = widest < 4 ? 2 : 1;
    rows = across.size < finer * MOST_ROWS ? across.size : finer * MOST_ROWS;
    width = (finer * finer * TILE / rows) / LANES * LANES;
    bands = (across.size + rows - 1) / rows;
    stretches = (along.size + width - 1) / width;
    streaming = stream;
    for (int t = P::OPERANDS; t < P::TENSORS; ++t) streaming = streaming && aligned(t);
  }

  int64_t units() const { return rest.points * bands * stretches; }

  void work(int64_t index) const {
    alignas(64) char buffer[P::OPERANDS][BUFFER_BYTES];
    int64_t coordinates[P::RANK + 1]{};
    Places<P> places = arguments.base;
    const int64_t first = index % stretches * width, band = index / stretches % bands * rows;
    rest.seek(index / stretches / bands, places, coordinates);
    const int64_t last = first + width < along.size ? first + width : along.size;
    const int64_t end = band + rows < across.size ? band + rows : across.size;
    Loop<P> step = across;
    for (int t = 0; t < P::TENSORS; ++t) places.at[t] += band * across.stride[t];
    for (int t = 0; t < P::OPERANDS; ++t) {
      if (!packed[t]) continue;
      pack(t, places.at[t] + first * along.stride[t], buffer[t], end - band, last - first);
      places.at[t] = buffer[t] - first * P::bytes[t];
      step.stride[t] = width * P::bytes[t];
    }
    streaming ? compute<true>(places, coordinates, step, {band, end}, {first, last})
              : compute<false>(places, coordinates, step, {band, end}, {first, last});
  }

 private:
  template <bool STREAM>
  TW_INLINE void compute(Places<P>& places, int64_t* coordinates, const Loop<P>& step, Range down, Range right) const {
    const typename P::Row none{};
    for (int64_t r = down.begin; r < down.end; ++r) {
      if (P::INDEXED) coordinates[across.dimension] = r;
      int64_t i = right.begin;
      for (; i + LANES <= right.end; i += LANES) P::element(At<P, false, STREAM>{places, coordinates, i, 0, LANES}, none);
      if (i < right.end) P::element(At<P, true>{places, coordinates, i, 0, static_cast<int>(right.end - i)}, none);
      for (int t = 0; t < P::TENSORS; ++t) places.at[t] += step.stride[t];
    }
    if constexpr (STREAM) stream_fence();
  }

  // Joins the dimensions outside of a loop's that every tensor walks as one with it; returns their bits.
  unsigned widened(Loop<P>& inner, unsigned taken) const {
    unsigned joined = 0;
    for (int d = inner.dimension - 1; d >= 0 && !((taken | P::INDEXED) >> d & 1); --d) {
      bool same = !(P::INDEXED >> inner.dimension & 1);
      for (int t = 0; t < P::TENSORS; ++t) same = same && arguments.stride[d][t] == inner.stride[t] * inner.size;
      if (!same) break;
      inner.size *= arguments.size(d);
      joined |= 1u << d;
    }
    return joined;
  }

  // Every row of a tile of this output starts on a vector.
  bool aligned(int t) const {
    const int64_t size = LANES * P::bytes[t];
    bool fits = reinterpret_cast<uintptr_t>(arguments.base.at[t]) % size == 0 && across.stride[t] % size == 0;
    for (int d = 0; d < rest.depth; ++d) fits &= rest.loops[d].stride[t] % size == 0;
    return fits;
  }

  Loop<P> loop(int dimension) const {
    Loop<P> made{arguments.size(dimension), {}, dimension};
    for (int t = 0; t < P::TENSORS; ++t) made.stride[t] = arguments.stride[dimension][t];
    return made;
  }

  // The dimension along which the first packed operand lies most densely, or -1.
  int partner() const {
    int best = -1;
    for (int t = 0; t < P::OPERANDS && best < 0; ++t) {
      for (int d = 0; packed[t] && d < P::RANK; ++d) {
        const int64_t stride = std::abs(arguments.stride[d][t]);
        if (d == P::VECTOR || stride == 0) continue;
        if (best < 0 || stride < std::abs(arguments.stride[best][t])) best = d;
      }
    }
    return best;
  }

  void pack(int t, const char* from, char* to, int64_t count, int64_t length) const {
    switch (P::bytes[t]) {
      case 8: return pack_as<uint64_t>(t, from, to, count, length);
      case 4: return pack_as<uint32_t>(t, from, to, count, length);
      case 2: return pack_as<uint16_t>(t, from, to, count, length);
      default: return pack_as<uint8_t>(t, from, to, count, length);
    }
  }
  template <class T>
  void pack_as(int t, const char* from, char* to, int64_t count, int64_t length) const {
    T* const target = reinterpret_cast<T*>(to);
    const int64_t down = across.stride[t], right = along.stride[t];
    const bool blocks = down == sizeof(T);
    const int64_t block_rows = blocks ? count / LANES * LANES : 0, block_columns = length / LANES * LANES;
    for (int64_t r = 0; r < block_rows; r += LANES) {
      for (int64_t c = 0; c < block_columns; c += LANES) {
        transpose(from + c * right + r * down, right, target + r * width + c);
      }
    }
    for (int64_t c = 0; c < length; ++c) {
      const char* source = from + c * right;
      for (int64_t r = c < block_columns ? block_rows : 0; r < count; ++r) {
        target[r * width + c] = *reinterpret_cast<const T*>(source + r * down);
      }
    }
  }

  // LANES columns of LANES neighbouring elements become rows, by exchanging ever larger quarters.
  template <class T>
  TW_INLINE void transpose(const char* from, int64_t right, T* to) const {
    using V = typename Signed<sizeof(T)>::type;
    V v[LANES];
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) std::memcpy(&v[k], from + k * right, sizeof(V));
    if constexpr (LANES > 1) exchange<1>(v);
    if constexpr (LANES > 2) exchange<2>(v);
    if constexpr (LANES > 4) exchange<4>(v);
    if constexpr (LANES > 8) exchange<8>(v);
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) std::memcpy(to + k * width, &v[k], sizeof(V));
  }
  template <int D, class V>
  static TW_INLINE void exchange(V (&v)[LANES]) {
    V upper{}, lower{};
    for (int lane = 0; lane < LANES; ++lane) {
      upper[lane] = lane & D ? LANES + (lane ^ D) : lane;
      lower[lane] = lane & D ? LANES + lane : lane ^ D;
    }
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) {
      if (k & D) continue;
      const V a = v[k], b = v[k | D];
      v[k] = __builtin_shuffle(a, b, upper);
      v[k | D] = __builtin_shuffle(a, b, lower);
    }
  }
};

}  // namespace tilewright
