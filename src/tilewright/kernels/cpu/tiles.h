// Pointwise programs whose operands are not all contiguous along the lanes: the domain goes by in tiles, and such operands
// are packed tile by tile into a buffer that stays in the first-level cache, read along whatever dimension suits them.
#pragma once

#include "walk.h"

namespace tilewright {

template <class P>
class Tiles {
  static constexpr int64_t TILE = 4096;  // points
  static constexpr int64_t MOST_ROWS = 64;

  Arguments<P> arguments;
  Nest<P> rest;              // the loops around a tile's two
  Loop<P> across, along;     // a tile's rows; what the lanes run along
  int64_t rows, width;       // of a tile
  int64_t bands, stretches;  // tiles along each
  bool packed[P::TENSORS];

 public:
  explicit Tiles(const Arguments<P>& given) : arguments(given) {
    along = loop(P::VECTOR);
    for (int t = 0; t < P::TENSORS; ++t) packed[t] = along.stride[t] != 0 && along.stride[t] != P::bytes[t];
    for (int t = 0; t < P::TENSORS; ++t) packed[t] = packed[t] || (along.stride[t] == 0 && P::shape[t][P::VECTOR] > 1);
    const int other = partner();
    across = other < 0 ? Loop<P>{1, {}, P::VECTOR} : loop(other);
    for (int d = 0; d < P::RANK; ++d) {
      if (d != P::VECTOR && d != other) rest.push(arguments, d);
    }
    rows = across.size < MOST_ROWS ? across.size : MOST_ROWS;
    width = (TILE / rows) / LANES * LANES;
    bands = (across.size + rows - 1) / rows;
    stretches = (along.size + width - 1) / width;
  }

  int64_t units() const { return rest.points * bands * stretches; }

  void work(int64_t index) const {
    alignas(64) char buffer[P::OPERANDS][TILE * 8];
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
    const typename P::Row none{};
    for (int64_t r = band; r < end; ++r) {
      if (P::INDEXED) coordinates[across.dimension] = r;
      int64_t i = first;
      for (; i + LANES <= last; i += LANES) P::element(At<P, false>{places, coordinates, i, 0, LANES}, none);
      if (i < last) P::element(At<P, true>{places, coordinates, i, 0, static_cast<int>(last - i)}, none);
      for (int t = 0; t < P::TENSORS; ++t) places.at[t] += step.stride[t];
    }
  }

 private:
  Loop<P> loop(int dimension) const {
    Loop<P> made{P::domain[dimension], {}, dimension};
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
    const bool blocks = sizeof(T) == 4 && down == 4;
    const int64_t block_rows = blocks ? count / LANES * LANES : 0, block_columns = length / LANES * LANES;
    for (int64_t r = 0; r < block_rows; r += LANES) {
      for (int64_t c = 0; c < block_columns; c += LANES) {
        transpose(from + c * right + r * down, right, reinterpret_cast<int32_t*>(to) + r * width + c);
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
  void transpose(const char* from, int64_t right, int32_t* to) const {
    I32 v[LANES];
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) std::memcpy(&v[k], from + k * right, sizeof(I32));
    exchange<1>(v);
    exchange<2>(v);
    if constexpr (LANES > 4) exchange<4>(v);
    if constexpr (LANES > 8) exchange<8>(v);
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) std::memcpy(to + k * width, &v[k], sizeof(I32));
  }
  template <int D>
  static TW_INLINE void exchange(I32 (&v)[LANES]) {
    I32 upper{}, lower{};
    for (int lane = 0; lane < LANES; ++lane) {
      upper[lane] = lane & D ? LANES + (lane ^ D) : lane;
      lower[lane] = lane & D ? LANES + lane : lane ^ D;
    }
#pragma GCC unroll 16
    for (int k = 0; k < LANES; ++k) {
      if (k & D) continue;
      const I32 a = v[k], b = v[k | D];
      v[k] = __builtin_shuffle(a, b, upper);
      v[k | D] = __builtin_shuffle(a, b, lower);
    }
  }
};

}  // namespace tilewright
