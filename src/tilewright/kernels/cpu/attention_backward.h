// Gradients of attention without its scores in memory: three passes, each of which makes them again from their factors.
//
//   queries   lanes are queries; over tiles of keys the query gradient is added up
//   keys      lanes are keys; over tiles of queries, of all heads that share the keys, the gradients of key and value are
//   operands  lanes are queries; over tiles of keys a further result of the map is, where it lies or is summed
//
//   score[n][lane] = sum over depth of a number's row * a lane's; weight gradient[n][lane] the same over columns
//   map: score, weight gradient -> weight, score gradient, further results
//
// Each result is written by one thread, in one order: it does not depend on how many threads there are.
#pragma once

#include <algorithm>
#include <tuple>

#include "attention.h"

namespace tilewright {

// Where a score is: lanes lie along the queries (ROWS) or along the keys.
template <class P, bool ROWS>
struct GradientAt {
  const Strided<P::RANK>* operands;  // at this place in the batch
  const int64_t* batch;
  int64_t lanes, number;  // the first lane's place, and that of the number beside it

  static constexpr int ALONG = ROWS ? P::RANK - 2 : P::RANK - 1, ACROSS = ROWS ? P::RANK - 1 : P::RANK - 2;

  template <int D, class V>
  TW_INLINE V index() const {
    if constexpr (D == ALONG) return splat<V>(static_cast<element_t<V>>(lanes)) + cast<V>(iota());
    return splat<V>(static_cast<element_t<V>>(D == ACROSS ? number : batch[D]));
  }

  // Operand number O; behind the last lane the last one's.
  template <int O, class T>
  TW_INLINE auto operand() const {
    constexpr int64_t COUNT = P::DOMAIN[ALONG];
    const Strided<P::RANK>& own = operands[O];
    const int64_t step = own.step[ALONG];
    const T* at = reinterpret_cast<const T*>(own.base) + number * own.step[ACROSS];
    if (step == 0) return load_splat(at);
    if (step == 1 && lanes + LANES <= COUNT) return load(at + lanes);
    typename Memory<T>::Raw raw;
    for (int lane = 0; lane < LANES; ++lane) {
      const int64_t r = lanes + lane < COUNT ? lanes + lane : COUNT - 1;
      std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), at + r * step, sizeof(T));
    }
    return Memory<T>::up(raw);
  }
};

// `count` rows of a layer from `first` on, each row's numbers in the lanes' places; 0 behind the last.
template <int COLUMNS, class T>
TW_INLINE void lanes_of(const Layer<T>& layer, int64_t first, int64_t rows, F32 (*made)[QV]) {
  for (int64_t d = 0; d < COLUMNS; ++d) {
    for (int lane = 0; lane < QUERIES; ++lane) {
      const bool there = first + lane < rows;
      made[d][lane / LANES][lane % LANES] = there ? number(layer.base + (first + lane) * layer.row + d * layer.column) : 0.0f;
    }
  }
}

template <class P>
struct AttentionGradients {
  static constexpr int MORE = P::MORE > 0 ? P::MORE : 1;
  static constexpr int64_t ROWS = P::DOMAIN[P::RANK - 2], KEYS = P::DOMAIN[P::RANK - 1];
  static constexpr int64_t ROW_BLOCKS = (ROWS + QUERIES - 1) / QUERIES, KEY_BLOCKS = (KEYS + QUERIES - 1) / QUERIES;
  static constexpr int WIDEST = P::DEPTH > P::COLUMNS ? P::DEPTH : P::COLUMNS;

  Strided<P::Query::RANK> query;
  Strided<P::Key::RANK> key;
  Strided<P::Value::RANK> value;
  Strided<P::Upstream::RANK> upstream;
  Strided<P::RANK> operands[P::OPERANDS > 0 ? P::OPERANDS : 1];
  char* out[3 + MORE];

  struct Room {
    F32 left[P::DEPTH][QV], right[P::COLUMNS][QV];  // what the lanes have: of the score and of the weights' gradient
    F32 scores[TW_KEYS][QV], gradients[TW_KEYS][QV], further[MORE][TW_KEYS][QV];
    F32 first[P::DEPTH][QV], second[P::COLUMNS][QV], wave[WIDEST][QV];
    float lefts[TW_KEYS * P::DEPTH], rights[TW_KEYS * P::COLUMNS];
  };

  // All that a place in the batch has.
  struct Place {
    int64_t index[P::RANK] = {};
    Layer<typename P::Element> query, key, value, upstream;
    Strided<P::RANK> operands[P::OPERANDS > 0 ? P::OPERANDS : 1];
  };

  Place place_at(const int64_t* index) const {
    Place made;
    std::copy(index, index + P::RANK, made.index);
    made.query = layer_at<typename P::Query>(query, index);
    made.key = layer_at<typename P::Key>(key, index);
    made.value = layer_at<typename P::Value>(value, index);
    made.upstream = layer_at<typename P::Upstream>(upstream, index);
    for (int o = 0; o < P::OPERANDS; ++o) {
      made.operands[o] = operands[o];
      for (int d = 0; d < P::RANK - 2; ++d) made.operands[o].base += index[d] * operands[o].step[d] * P::operand_bytes[o];
    }
    return made;
  }

  // The batch's dimensions of which `chosen` says the same, counted by `number`, into `index`; what is left of `number`.
  static int64_t spread(int64_t number, const bool* summed, bool chosen, int64_t* index) {
    for (int d = P::RANK - 3; d >= 0; --d) {
      if (summed[d] != chosen) continue;
      index[d] = number % P::DOMAIN[d];
      number /= P::DOMAIN[d];
    }
    return number;
  }

  static int64_t count(const bool* summed, bool chosen) {
    int64_t made = 1;
    for (int d = 0; d < P::RANK - 2; ++d) made *= summed[d] == chosen ? P::DOMAIN[d] : 1;
    return made;
  }

  // The numbers that may be visible beside these lanes.
  template <bool BY_ROWS>
  static void visible(int64_t first, int64_t* begin, int64_t* end) {
    *begin = 0, *end = BY_ROWS ? KEYS : ROWS;
    const bool low = P::LOW != INT64_MIN, high = P::HIGH != INT64_MAX;
    if (BY_ROWS) {
      if (low) *begin = std::max<int64_t>(*begin, first + P::LOW);
      if (high) *end = std::min<int64_t>(*end, first + QUERIES + P::HIGH);
    } else {
      if (high) *begin = std::max<int64_t>(*begin, first - P::HIGH);
      if (low) *end = std::min<int64_t>(*end, first + QUERIES - P::LOW);
    }
  }

  // Weights and gradients of scores for `count` numbers from `at` on; where the rows of both factors lie.
  template <bool BY_ROWS>
  TW_INLINE void tile(Room& room, const Place& place, int64_t first, int64_t at, int count, const float** lefts, const float** rights,
                      int64_t* apart) const {
    *lefts = rows_of<P::DEPTH>(BY_ROWS ? place.key : place.query, at, count, room.lefts, apart);
    *rights = rows_of<P::COLUMNS>(BY_ROWS ? place.value : place.upstream, at, count, room.rights, apart + 1);
    all_sums(count, *lefts, apart[0], 1, P::DEPTH, room.left, room.scores);
    all_sums(count, *rights, apart[1], 1, P::COLUMNS, room.right, room.gradients);
    for (int j = 0; j < QV; ++j) {
      for (int n = 0; n < count; ++n) {
        F32 further[MORE];
        const GradientAt<P, BY_ROWS> where{place.operands, place.index, first + j * LANES, at + n};
        P::map(where, room.scores[n][j], room.gradients[n][j], room.scores[n][j], room.gradients[n][j], further);
        for (int o = 0; o < P::MORE; ++o) room.further[o][n][j] = further[o];
      }
    }
  }

  // Adds sums over `count` numbers of factors[n][d] * vectors[n] to `to`.
  template <int COLUMNS>
  TW_INLINE static void add(Room& room, const float* factors, int64_t apart, int count, const F32 (*vectors)[QV], F32 (*to)[QV]) {
    all_sums(COLUMNS, factors, 1, apart, count, vectors, room.wave);
    for (int d = 0; d < COLUMNS; ++d) {
      for (int j = 0; j < QV; ++j) to[d][j] += room.wave[d][j];
    }
  }

  template <int COLUMNS>
  TW_INLINE static void clear(F32 (*to)[QV]) {
    for (int d = 0; d < COLUMNS; ++d) {
      for (int j = 0; j < QV; ++j) to[d][j] = F32{};
    }
  }

  // Lanes as rows of a dense result whose layer is number `layer`.
  template <int COLUMNS>
  void write(const F32 (*made)[QV], char* out, int64_t layer, int64_t first, int64_t rows) const {
    using T = typename P::Element;
    T* to = reinterpret_cast<T*>(out) + (layer * rows + first) * COLUMNS;
    for (int c = 0; c < COLUMNS; ++c) {
      for (int j = 0; j < QV; ++j) {
        const auto raw = Memory<T>::down(made[c][j]);
        for (int lane = 0; lane < LANES && first + j * LANES + lane < rows; ++lane) {
          std::memcpy(to + (j * LANES + lane) * COLUMNS + c, reinterpret_cast<const char*>(&raw) + lane * sizeof(T), sizeof(T));
        }
      }
    }
  }

  static constexpr bool NONE[P::RANK] = {};

  void of_queries(int64_t unit, Room& room) const {
    int64_t index[P::RANK] = {}, begin, end, apart[2];
    const int64_t first = unit % ROW_BLOCKS * QUERIES;
    spread(unit / ROW_BLOCKS, NONE, false, index);
    const Place place = place_at(index);
    lanes_of<P::DEPTH>(place.query, first, ROWS, room.left);
    lanes_of<P::COLUMNS>(place.upstream, first, ROWS, room.right);
    clear<P::DEPTH>(room.first);
    visible<true>(first, &begin, &end);
    for (int64_t at = begin; at < end; at += TW_KEYS) {
      const int many = static_cast<int>(std::min<int64_t>(TW_KEYS, end - at));
      const float *lefts, *rights;
      tile<true>(room, place, first, at, many, &lefts, &rights, apart);
      add<P::DEPTH>(room, lefts, apart[0], many, room.gradients, room.first);
    }
    write<P::DEPTH>(room.first, out[0], unit / ROW_BLOCKS, first, ROWS);
  }

  void of_keys(int64_t unit, Room& room) const {
    int64_t index[P::RANK] = {}, begin, end, apart[2];
    const int64_t first = unit % KEY_BLOCKS * QUERIES, shared = count(P::SHARED, true);
    spread(unit / KEY_BLOCKS, P::SHARED, false, index);
    clear<P::DEPTH>(room.first);
    clear<P::COLUMNS>(room.second);
    visible<false>(first, &begin, &end);
    for (int64_t s = 0; s < shared; ++s) {
      spread(s, P::SHARED, true, index);
      const Place place = place_at(index);
      lanes_of<P::DEPTH>(place.key, first, KEYS, room.left);
      lanes_of<P::COLUMNS>(place.value, first, KEYS, room.right);
      for (int64_t at = begin; at < end; at += TW_KEYS) {
        const int many = static_cast<int>(std::min<int64_t>(TW_KEYS, end - at));
        const float *lefts, *rights;
        tile<false>(room, place, first, at, many, &lefts, &rights, apart);
        add<P::DEPTH>(room, lefts, apart[0], many, room.gradients, room.first);
        add<P::COLUMNS>(room, rights, apart[1], many, room.scores, room.second);
      }
    }
    write<P::DEPTH>(room.first, out[1], unit / KEY_BLOCKS, first, KEYS);
    write<P::COLUMNS>(room.second, out[2], unit / KEY_BLOCKS, first, KEYS);
  }

  // Further result R: of what it keeps, a block of queries and a tile of keys are a unit.
  template <class R>
  static int64_t units_of() {
    return count(R::SUMMED, false) * (R::SUMMED[P::RANK - 2] ? 1 : ROW_BLOCKS) * (R::SUMMED[P::RANK - 1] ? 1 : (KEYS + TW_KEYS - 1) / TW_KEYS);
  }

  template <class R>
  void of_operand(int64_t unit, Room& room) const {
    constexpr bool NO_ROWS = R::SUMMED[P::RANK - 2], NO_KEYS = R::SUMMED[P::RANK - 1];
    constexpr int64_t TILES = (KEYS + TW_KEYS - 1) / TW_KEYS;
    int64_t index[P::RANK] = {}, seen[2], apart[2];
    const int64_t tile_number = NO_KEYS ? 0 : unit % TILES, block = NO_ROWS ? 0 : unit / (NO_KEYS ? 1 : TILES) % ROW_BLOCKS;
    const int64_t layer = unit / ((NO_KEYS ? 1 : TILES) * (NO_ROWS ? 1 : ROW_BLOCKS)), shared = count(R::SUMMED, true);
    spread(layer, R::SUMMED, false, index);
    F32 made[TW_KEYS][QV];
    clear<TW_KEYS>(made);
    for (int64_t s = 0; s < shared; ++s) {
      spread(s, R::SUMMED, true, index);
      const Place place = place_at(index);
      for (int64_t b = block; b < (NO_ROWS ? ROW_BLOCKS : block + 1); ++b) {
        const int64_t first = b * QUERIES;
        lanes_of<P::DEPTH>(place.query, first, ROWS, room.left);
        lanes_of<P::COLUMNS>(place.upstream, first, ROWS, room.right);
        visible<true>(first, seen, seen + 1);
        for (int64_t t = tile_number; t < (NO_KEYS ? TILES : tile_number + 1); ++t) {
          const int64_t at = t * TW_KEYS;
          const int many = static_cast<int>(std::min<int64_t>(TW_KEYS, KEYS - at));
          if (at >= seen[1] || at + many <= seen[0]) continue;
          const float *lefts, *rights;
          tile<true>(room, place, first, at, many, &lefts, &rights, apart);
          for (int j = 0; j < QV; ++j) {
            const Bool there = first_lanes(static_cast<int>(std::clamp<int64_t>(ROWS - first - j * LANES, 0, LANES)));
            F32 sum = F32{};
            for (int n = 0; n < many; ++n) {
              const F32 own = where(there, room.further[R::NUMBER][n][j], F32{});
              if constexpr (NO_KEYS) sum += own;
              else made[n][j] += own;
            }
            if constexpr (NO_KEYS) made[0][j] += sum;
          }
        }
      }
    }
    write_further<R>(made, layer, block * QUERIES, tile_number * TW_KEYS);
  }

  template <class R>
  void write_further(const F32 (*made)[QV], int64_t layer, int64_t first, int64_t at) const {
    constexpr bool NO_ROWS = R::SUMMED[P::RANK - 2], NO_KEYS = R::SUMMED[P::RANK - 1];
    using T = typename R::Element;
    T* to = reinterpret_cast<T*>(out[3 + R::NUMBER]) + layer * (NO_ROWS ? 1 : ROWS) * (NO_KEYS ? 1 : KEYS);
    const int64_t line = NO_KEYS ? 1 : KEYS, many = NO_KEYS ? 1 : std::min<int64_t>(TW_KEYS, KEYS - at);
    for (int64_t n = 0; n < many; ++n) {
      if constexpr (NO_ROWS) {
        float sum = 0.0f;
        for (int lane = 0; lane < QUERIES; ++lane) sum += made[n][lane / LANES][lane % LANES];
        const auto raw = Memory<T>::down(f32(sum));
        std::memcpy(to + at + n, &raw, sizeof(T));
        continue;
      }
      for (int lane = 0; lane < QUERIES && first + lane < ROWS; ++lane) {
        const auto raw = Memory<T>::down(f32(made[n][lane / LANES][lane % LANES]));
        std::memcpy(to + (first + lane) * line + at + n, &raw, sizeof(T));
      }
    }
  }

  template <class Work>
  void each(int64_t units, int threads, Work work) const {
    threads = static_cast<int>(std::min<int64_t>(threads, units));
#pragma omp parallel num_threads(threads)
    {
      std::vector<Room> room(1);
#pragma omp for schedule(dynamic, 1)
      for (int64_t unit = units - 1; unit >= 0; --unit) work(unit, room[0]);
    }
  }

  template <class... R>
  void run(int threads, std::tuple<R...>*) const {
    each(count(NONE, false) * ROW_BLOCKS, threads, [&](int64_t unit, Room& room) { of_queries(unit, room); });
    each(count(P::SHARED, false) * KEY_BLOCKS, threads, [&](int64_t unit, Room& room) { of_keys(unit, room); });
    (each(units_of<R>(), threads, [&](int64_t unit, Room& room) { of_operand<R>(unit, room); }), ...);
  }
};

template <class P>
int attention_gradients(const TVMFFIAny* values, int32_t count, TVMFFIAny* result) {
  constexpr int READ = 4 + P::OPERANDS, TENSORS = READ + 3 + P::MORE, BYTES = sizeof(typename P::Element);
  if (count != TENSORS + 2) return refuse("TypeError", count, "wrong number of arguments");
  AttentionGradients<P> whole;
  if (!strided(whole.query, values, 0, P::CODE, BYTES, P::Query::SHAPE)) return -1;
  if (!strided(whole.key, values, 1, P::CODE, BYTES, P::Key::SHAPE)) return -1;
  if (!strided(whole.value, values, 2, P::CODE, BYTES, P::Value::SHAPE)) return -1;
  if (!strided(whole.upstream, values, 3, P::CODE, BYTES, P::Upstream::SHAPE)) return -1;
  for (int o = 0; o < P::OPERANDS; ++o) {
    if (!strided(whole.operands[o], values, 4 + o, P::operand_code[o], P::operand_bytes[o], P::operand_shape[o])) return -1;
  }
  for (int o = 0; o < 3 + P::MORE; ++o) {
    Strided<P::RANK> out;
    if (!strided(out, values, READ + o, P::result_code[o], P::result_bytes[o], P::result_shape[o])) return -1;
    whole.out[o] = out.base;
  }
  whole.run(static_cast<int>(values[TENSORS].v_int64), static_cast<typename P::Further*>(nullptr));
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}

}  // namespace tilewright

#define TW_EXPORT_ATTENTION_GRADIENTS(P)                                                                    \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, const TVMFFIAny* values,       \
                                                                      int32_t count, TVMFFIAny* result) {  \
    return tilewright::attention_gradients<P>(values, count, result);                                       \
  }
