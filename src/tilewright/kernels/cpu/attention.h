// Attention without its scores in memory: blocks of queries, each over tiles of keys with a running maximum and sum.
//
//   lanes     queries: QV vectors of them are a block. All that a query has (its largest score, sums, results) is one lane,
//             so nothing is reduced across lanes, and keys and values are read as they lie, a number at a time
//   a tile    scores[key][query] = sum over d of key[key][d] * query[d][query]
//             weights = exp(scores - the largest so far)
//             results[column][query] = results * exp(the largest before - now) + sum over keys of value * weights
//
// The sums of a tile are added up by themselves, then to the results, so that long rows lose nothing. Queries, results, and
// operands whose neighbours in memory are keys, change between rows and lanes in squares of LANES. Keys that a block does
// not see are left out where their values are finite: 0 times those adds nothing.
#pragma once

#include "entry.h"

#ifndef TW_KEYS
#define TW_KEYS 48  // of a tile, a multiple of 12
#endif

namespace tilewright {

constexpr int QV = 2;                                // vectors of queries
constexpr int AT_ONCE = REGISTER_BYTES == 64 ? 12 : 6;  // keys, or columns, whose sums are in registers
constexpr int QUERIES = QV * LANES;

// A tensor of `RANK` dimensions: where it begins, and its steps in elements.
template <int RANK>
struct Strided {
  char* base = nullptr;
  int64_t step[RANK > 0 ? RANK : 1] = {};
};

// A dimension of a factor's batch: the index along a dimension of the domain / each % size.
struct BatchStep {
  int dim;
  int64_t each, size;
};

// A factor's layer at these indices, its step from row to row and from column to column.
template <class T>
struct Layer {
  const T* base;
  int64_t row, column;
};

template <class F>
Layer<typename F::Element> layer_at(const Strided<F::RANK>& tensor, const int64_t* index) {
  using T = typename F::Element;
  const T* base = reinterpret_cast<const T*>(tensor.base);
  int64_t row = 0;
  for (int k = 0, b = 0; k < F::RANK - 1; ++k) {
    if (k == F::ROWS_AT) {
      row = tensor.step[k];
    } else {
      const BatchStep s = F::BATCH[b++];
      base += index[s.dim] / s.each % s.size * tensor.step[k];
    }
  }
  return {base, row, tensor.step[F::RANK - 1]};
}

// One number of a tensor, as its values are.
template <class T>
TW_INLINE float number(const T* at) {
  return load_splat(at)[0];
}

// `count` rows of a layer from `first` on as fp32 numbers side by side: where they lie, or copied into `room`.
template <int COLUMNS, class T>
TW_INLINE const float* rows_of(const Layer<T>& layer, int64_t first, int count, float* room, int64_t* apart) {
  if constexpr (std::is_same_v<T, float>) {
    if (layer.column == 1) {
      *apart = layer.row;
      return layer.base + first * layer.row;
    }
  }
  *apart = COLUMNS;
  for (int n = 0; n < count; ++n) {
    const T* from = layer.base + (first + n) * layer.row;
    int d = 0;
    if (layer.column == 1) {
      for (; d + LANES <= COLUMNS; d += LANES) store(room + n * COLUMNS + d, load(from + d));
    }
    for (; d < COLUMNS; ++d) room[n * COLUMNS + d] = number(from + d * layer.column);
  }
  return room;
}

// LANES rows of LANES neighbours, `apart` elements from row to row, become columns: corners of ever larger squares change
// places.
template <int D, class V>
TW_INLINE void corners(V (&v)[LANES]) {
  V upper{}, lower{};
  for (int lane = 0; lane < LANES; ++lane) {
    upper[lane] = lane & D ? LANES + lane - D : lane;
    lower[lane] = lane & D ? LANES + lane : lane + D;
  }
#pragma GCC unroll 16
  for (int k = 0; k < LANES; ++k) {
    if (k & D) continue;
    const V above = v[k], below = v[k + D];
    v[k] = __builtin_shuffle(above, below, upper);
    v[k + D] = __builtin_shuffle(above, below, lower);
  }
}

template <class T>
TW_INLINE void square(const T* from, int64_t apart, T* to, int64_t to_apart) {
  using V = typename Signed<sizeof(T)>::type;
  V v[LANES];
#pragma GCC unroll 16
  for (int k = 0; k < LANES; ++k) std::memcpy(&v[k], from + k * apart, sizeof(V));
  if constexpr (LANES > 1) corners<1>(v);
  if constexpr (LANES > 2) corners<2>(v);
  if constexpr (LANES > 4) corners<4>(v);
  if constexpr (LANES > 8) corners<8>(v);
#pragma GCC unroll 16
  for (int k = 0; k < LANES; ++k) std::memcpy(to + k * to_apart, &v[k], sizeof(V));
}

// to[c][r] = from[r][c] of `rows` rows, and columns that are neighbours.
template <class T>
TW_INLINE void transposed(const T* from, int64_t apart, int rows, int columns, T* to, int64_t to_apart) {
  const int r_end = rows / LANES * LANES, c_end = columns / LANES * LANES;
  for (int r = 0; r < r_end; r += LANES) {
    for (int c = 0; c < c_end; c += LANES) square(from + r * apart + c, apart, to + c * to_apart + r, to_apart);
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = r < r_end ? c_end : 0; c < columns; ++c) to[c * to_apart + r] = from[r * apart + c];
  }
}

// Whether rows of a layer, from one on and before another, are finite.
template <int COLUMNS, class T>
bool all_finite(const Layer<T>& layer, int64_t first, int64_t last) {
  for (int64_t n = first; n < last; ++n) {
    const T* row = layer.base + n * layer.row;
    F32 sum = F32{};
    int c = 0;
    if (layer.column == 1) {
      for (; c + LANES <= COLUMNS; c += LANES) sum += 0.0f * load(row + c);
    }
    float rest = 0.0f;
    for (; c < COLUMNS; ++c) rest += 0.0f * number(row + c * layer.column);
    for (int lane = 0; lane < LANES; ++lane) rest += sum[lane];
    if (rest != 0.0f) return false;
  }
  return true;
}

// `COUNT` sums over `length` of factors[i * apart + k * along] * vectors[k].
template <int COUNT>
TW_INLINE void sums(const float* factors, int64_t apart, int64_t along, int64_t length, const F32 (*vectors)[QV], F32 (*made)[QV]) {
  F32 total[COUNT][QV] = {};
  for (int64_t k = 0; k < length; ++k) {
    F32 own[QV];
#pragma GCC unroll 4
    for (int v = 0; v < QV; ++v) own[v] = vectors[k][v];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) {
      const F32 factor = f32(factors[i * apart + k * along]);
#pragma GCC unroll 4
      for (int v = 0; v < QV; ++v) total[i][v] = fma(factor, own[v], total[i][v]);
    }
  }
  for (int i = 0; i < COUNT; ++i) {
    for (int v = 0; v < QV; ++v) made[i][v] = total[i][v];
  }
}

// The same for any number of them.
TW_INLINE void all_sums(int count, const float* factors, int64_t apart, int64_t along, int64_t length, const F32 (*vectors)[QV], F32 (*made)[QV]) {
  int i = 0;
  for (; i + AT_ONCE <= count; i += AT_ONCE) sums<AT_ONCE>(factors + i * apart, apart, along, length, vectors, made + i);
  for (; i < count; ++i) sums<1>(factors + i * apart, apart, along, length, vectors, made + i);
}

// Whether an operand's tile is staged: its neighbours are keys, not queries, and no query of the block is behind the last.
template <class P>
TW_INLINE bool staged_whole(const Strided<P::RANK>& operand, int64_t first) {
  return operand.step[P::RANK - 1] == 1 && operand.step[P::ROW] > 1 && first + QUERIES <= P::ROWS;
}

// Where a score is: the first lane's query, the key, and the indices of the batch.
template <class P>
struct ScoreAt {
  const Strided<P::RANK>* operands;  // at this place in the batch
  const char (*staged)[P::STAGED];    // tiles of operands as [key][query], of those whose neighbours are keys
  const int64_t* batch;
  int64_t first, row, key;            // the block's first query, the first lane's, and the key
  int at;                             // the key's place in the tile

  template <int D, class V>
  TW_INLINE V index() const {
    if constexpr (D == P::RANK - 1) {
      return splat<V>(static_cast<element_t<V>>(key));
    } else if constexpr (D == P::ROW) {
      return splat<V>(static_cast<element_t<V>>(row)) + cast<V>(iota());
    } else {
      return splat<V>(static_cast<element_t<V>>(batch[D]));
    }
  }

  // Operand number O; of queries behind the last the last one's.
  template <int O, class T>
  TW_INLINE auto operand() const {
    const Strided<P::RANK>& own = operands[O];
    const int64_t step = own.step[P::ROW];
    if (staged_whole<P>(own, first)) {
      return load(reinterpret_cast<const T*>(staged[O]) + at * QUERIES + (row - first));
    }
    const T* from = reinterpret_cast<const T*>(own.base) + key * own.step[P::RANK - 1];
    if (step == 0) return load_splat(from);
    if (step == 1 && row + LANES <= P::ROWS) return load(from + row);
    typename Memory<T>::Raw raw;
    for (int lane = 0; lane < LANES; ++lane) {
      const int64_t r = row + lane < P::ROWS ? row + lane : P::ROWS - 1;
      std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), from + r * step, sizeof(T));
    }
    return Memory<T>::up(raw);
  }
};

template <class P>
struct Attention {
  Strided<P::Query::RANK> query;
  Strided<P::Key::RANK> key;
  Strided<P::Value::RANK> value;
  Strided<P::RANK> operands[P::OPERANDS > 0 ? P::OPERANDS : 1];
  char* out;
  char* logsum;  // log(sum of exp(score)) of each row, where the program wants it

  static constexpr int64_t BLOCKS = (P::ROWS + QUERIES - 1) / QUERIES;

  struct Room {
    F32 query[P::DEPTH][QV], scores[TW_KEYS][QV], results[P::COLUMNS][QV], wave[P::COLUMNS][QV];
    float keys[(TW_KEYS > QUERIES ? TW_KEYS : QUERIES) * P::DEPTH], values[TW_KEYS * P::COLUMNS];
    alignas(64) char staged[P::OPERANDS > 0 ? P::OPERANDS : 1][P::STAGED];
  };

  // Block number `unit` of the whole: of the batch, and within it of the queries.
  void work(int64_t unit, Room& room) const {
    int64_t index[P::RANK] = {};
    int64_t left = unit / BLOCKS;
    const int64_t first = unit % BLOCKS * QUERIES;
    for (int d = P::RANK - 2; d >= 0; --d) {
      if (d == P::ROW) continue;
      index[d] = left % P::DOMAIN[d];
      left /= P::DOMAIN[d];
    }
    const auto q = layer_at<typename P::Query>(query, index);
    const auto k = layer_at<typename P::Key>(key, index);
    const auto v = layer_at<typename P::Value>(value, index);
    Strided<P::RANK> own[P::OPERANDS > 0 ? P::OPERANDS : 1];
    for (int o = 0; o < P::OPERANDS; ++o) {
      own[o] = operands[o];
      for (int d = 0; d < P::RANK - 1; ++d) {
        if (d != P::ROW) own[o].base += index[d] * own[o].step[d] * P::operand_bytes[o];
      }
    }
    const int queries = static_cast<int>(std::min<int64_t>(QUERIES, P::ROWS - first));
    int64_t apart;
    if (queries < QUERIES) std::memset(room.query, 0, sizeof(room.query));
    const float* rows = rows_of<P::DEPTH>(q, first, queries, room.keys, &apart);
    transposed(rows, apart, queries, P::DEPTH, reinterpret_cast<float*>(room.query), QUERIES);
    for (int64_t c = 0; c < P::COLUMNS; ++c) {
      for (int j = 0; j < QV; ++j) room.results[c][j] = F32{};
    }
    F32 top[QV], total[QV];
    for (int j = 0; j < QV; ++j) top[j] = f32(-INFINITY), total[j] = F32{};
    int64_t begin = 0, end = P::KEYS;
    if (P::LOW != INT64_MIN) begin = std::min(std::max<int64_t>(begin, first + P::LOW), end);
    if (P::HIGH != INT64_MAX) end = std::max(std::min<int64_t>(end, first + queries + P::HIGH), begin);
    if (!P::SPARES && begin > 0 && !all_finite<P::COLUMNS>(v, 0, begin)) begin = 0;
    if (!P::SPARES && end < P::KEYS && !all_finite<P::COLUMNS>(v, end, P::KEYS)) end = P::KEYS;
    for (int64_t at = begin; at < end; at += TW_KEYS) {
      const int count = static_cast<int>(std::min<int64_t>(TW_KEYS, end - at));
      stage(room, own, first, at, count);
      tile(room, {own, room.staged, index, first, first, at, 0}, count, k, v, top, total);
    }
    if constexpr (P::SINK >= 0) {
      for (int j = 0; j < QV; ++j) {
        const ScoreAt<P> at{own, room.staged, index, first, first + j * LANES, 0, 0};
        with_sink(room, P::sink(at), j, top, total);
      }
    }
    F32 by[QV];
    for (int j = 0; j < QV; ++j) {
      by[j] = f32(1.0f);
      if constexpr (P::SOFTMAX) by[j] = 1.0f / (P::EMPTY_IS_ZERO ? where(mask(total[j] == 0.0f), f32(1.0f), total[j]) : total[j]);
    }
    for (int64_t c = 0; c < P::COLUMNS; ++c) {
      for (int j = 0; j < QV; ++j) room.results[c][j] *= by[j];
    }
    write(room, index, first, queries);
    if constexpr (P::LOGSUM) write_logsum(index, first, top, total);
  }

  // Tiles of operands that lie along keys, so that lanes are neighbours.
  TW_INLINE void stage(Room& room, const Strided<P::RANK>* own, int64_t first, int64_t key, int count) const {
    for (int o = 0; o < P::OPERANDS; ++o) {
      if (!staged_whole<P>(own[o], first)) continue;
      switch (P::operand_bytes[o]) {
        case 8: staged_as<uint64_t>(room.staged[o], own[o], first, key, count); break;
        case 4: staged_as<uint32_t>(room.staged[o], own[o], first, key, count); break;
        case 2: staged_as<uint16_t>(room.staged[o], own[o], first, key, count); break;
        default: staged_as<uint8_t>(room.staged[o], own[o], first, key, count);
      }
    }
  }
  template <class T>
  TW_INLINE void staged_as(char* to, const Strided<P::RANK>& own, int64_t first, int64_t key, int count) const {
    const T* from = reinterpret_cast<const T*>(own.base) + first * own.step[P::ROW] + key;
    transposed(from, own.step[P::ROW], QUERIES, count, reinterpret_cast<T*>(to), QUERIES);
  }

  // One more score, whose value is 0, in the sums of vector j.
  TW_INLINE void with_sink(Room& room, F32 score, int j, F32* top, F32* total) const {
    const F32 most = score > top[j] ? score : top[j];
    const F32 base = where(mask(most == -INFINITY), F32{}, most), onto = exp(top[j] - base);
    total[j] = total[j] * onto + exp(score - base);
    for (int64_t c = 0; c < P::COLUMNS; ++c) room.results[c][j] *= onto;
  }

  template <class K, class V>
  TW_INLINE void tile(Room& room, ScoreAt<P> at, int count, const K& k, const V& v, F32* top, F32* total) const {
    int64_t apart;
    const int64_t first = at.key;
    const float* keys = rows_of<P::DEPTH>(k, first, count, room.keys, &apart);
    all_sums(count, keys, apart, 1, P::DEPTH, room.query, room.scores);
    const int64_t row = at.row;
    F32 onto[QV];
    for (int j = 0; j < QV; ++j) {
      at.row = row + j * LANES;
      F32 most = top[j];
      for (int n = 0; n < count; ++n) {
        at.key = first + n, at.at = n;
        const F32 score = P::score(at, room.scores[n][j]);
        room.scores[n][j] = score;
        most = score > most ? score : most;
      }
      if constexpr (P::SOFTMAX) {
        const F32 base = where(mask(most == -INFINITY), F32{}, most);
        onto[j] = exp(top[j] - base);
        top[j] = most;
        F32 sum = F32{};
        for (int n = 0; n < count; ++n) {
          room.scores[n][j] = exp(room.scores[n][j] - base);
          sum += room.scores[n][j];
        }
        total[j] = total[j] * onto[j] + sum;
      }
    }
    const float* values = rows_of<P::COLUMNS>(v, first, count, room.values, &apart);
    all_sums(P::COLUMNS, values, 1, apart, count, room.scores, room.wave);
    for (int64_t c = 0; c < P::COLUMNS; ++c) {
      for (int j = 0; j < QV; ++j) {
        const F32 before = P::SOFTMAX ? room.results[c][j] * onto[j] : room.results[c][j];
        room.results[c][j] = before + room.wave[c][j];
      }
    }
  }

  TW_INLINE void write_logsum(const int64_t* index, int64_t first, const F32* top, const F32* total) const {
    int64_t start = 0, step = 1, row = 0;
    for (int d = P::RANK - 2; d >= 0; --d) {
      if (d == P::ROW) row = step;
      start += index[d] * step;
      step *= P::DOMAIN[d];
    }
    float* to = reinterpret_cast<float*>(logsum) + start + first * row;
    for (int j = 0; j < QV; ++j) {
      const F32 made = top[j] + log(total[j]);
      for (int lane = 0; lane < LANES && first + j * LANES + lane < P::ROWS; ++lane) to[(j * LANES + lane) * row] = made[lane];
    }
  }

  TW_INLINE void write(Room& room, const int64_t* index, int64_t first, int queries) const {
    using T = typename P::Element;
    int64_t start = 0, step = 1, row = 0;
    for (int d = P::RANK - 1; d >= 0; --d) {
      if (d == P::ROW) row = step;
      start += index[d] * step;
      step *= P::DOMAIN[d];
    }
    T* to = reinterpret_cast<T*>(out) + start + first * row;
    const float* from = reinterpret_cast<const float*>(room.results);
    float* rows = reinterpret_cast<float*>(room.wave);  // has been added to the results
    if constexpr (std::is_same_v<T, float>) {
      if (queries == QUERIES) return transposed(from, QUERIES, P::COLUMNS, QUERIES, reinterpret_cast<float*>(to), row);
    }
    transposed(from, QUERIES, P::COLUMNS, QUERIES, rows, P::COLUMNS);
    for (int r = 0; r < queries; ++r) {
      int c = 0;
      for (; c + LANES <= P::COLUMNS; c += LANES) store(to + r * row + c, load(rows + r * P::COLUMNS + c));
      for (; c < P::COLUMNS; ++c) {
        const auto raw = Memory<T>::down(f32(rows[r * P::COLUMNS + c]));
        std::memcpy(to + r * row + c, &raw, sizeof(T));
      }
    }
  }
};

// Sets a tensor's place, or an error.
template <int RANK>
bool strided(Strided<RANK>& made, const TVMFFIAny* values, int argument, int code, int bytes, const int64_t* shape) {
  const DLTensor* tensor = expected(values, argument, code, bytes, shape, RANK);
  if (tensor == nullptr) return false;
  made.base = start_of(tensor);
  int64_t dense = 1;
  for (int d = RANK - 1; d >= 0; --d) {
    made.step[d] = shape[d] == 1 ? 0 : tensor->strides ? tensor->strides[d] : dense;
    dense *= shape[d];
  }
  return true;
}

template <class P>
int attend(const TVMFFIAny* values, int32_t count, TVMFFIAny* result) {
  constexpr int TENSORS = 3 + P::OPERANDS + 1 + P::LOGSUM;
  if (count != TENSORS + 2) return refuse("TypeError", count, "wrong number of arguments");
  Attention<P> whole;
  if (!strided(whole.query, values, 0, P::CODE, sizeof(typename P::Element), P::Query::SHAPE)) return -1;
  if (!strided(whole.key, values, 1, P::CODE, sizeof(typename P::Element), P::Key::SHAPE)) return -1;
  if (!strided(whole.value, values, 2, P::CODE, sizeof(typename P::Element), P::Value::SHAPE)) return -1;
  for (int o = 0; o < P::OPERANDS; ++o) {
    if (!strided(whole.operands[o], values, 3 + o, P::operand_code[o], P::operand_bytes[o], P::operand_shape[o])) return -1;
  }
  Strided<P::RANK> out;
  if (!strided(out, values, 3 + P::OPERANDS, P::CODE, sizeof(typename P::Element), P::DOMAIN)) return -1;
  whole.out = out.base;
  if constexpr (P::LOGSUM) {
    int64_t sizes[P::RANK];
    std::copy(P::DOMAIN, P::DOMAIN + P::RANK, sizes);
    sizes[P::RANK - 1] = 1;
    if (!strided(out, values, TENSORS - 1, kDLFloat, sizeof(float), sizes)) return -1;
    whole.logsum = out.base;
  }
  int64_t units = Attention<P>::BLOCKS;
  for (int d = 0; d < P::RANK - 1; ++d) units *= d == P::ROW ? 1 : P::DOMAIN[d];
  const int threads = static_cast<int>(std::min<int64_t>(values[TENSORS].v_int64, units));
#pragma omp parallel num_threads(threads)
  {
    std::vector<typename Attention<P>::Room> room(1);
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = units - 1; unit >= 0; --unit) whole.work(unit, room[0]);
  }
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}

}  // namespace tilewright

#define TW_EXPORT_ATTENTION(P)                                                                              \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, const TVMFFIAny* values,       \
                                                                      int32_t count, TVMFFIAny* result) {  \
    return tilewright::attend<P>(values, count, result);                                                    \
  }
