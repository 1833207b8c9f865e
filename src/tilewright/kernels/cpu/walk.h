// Walking over an index space: tensors with any strides, loops merged where memory allows, and the cursor that a
// program's functors read and write through.
//
// A program P (written by the renderer) declares RANK, TENSORS (slots: aligned operands, loads, outputs), domain[RANK],
// shape[TENSORS][RANK], code[TENSORS], given[TENSORS] (which of the call's tensors a slot is), REDUCED and INDEXED (bit
// sets of dimensions) and VECTOR, the dimension along which the lanes lie: in every tensor that has it `lane` bytes apart,
// mostly one element (UNIT: everywhere).
//
// A load L reads a tensor of RANK dimensions of `size` where dimension k is at start[k] plus the sum over the domain's
// dimensions d of step[k][d] times the position there. CHECKED is the set of those that may lie outside. A load that gathers
// reads dimension GATHERED where a value says, which differs from lane to lane if it VARIES.
//
// OPEN is the set of dimensions that have any size that tensors agree on; of these, domain and shape hold one of many.
//
// Outputs that are `summed` hold sums over the rows in PARTS parts (0: there are none), the parts along their first dimension
// that is not reduced.
#pragma once

#include "reductions.h"

namespace tilewright {

// A tensor of a program: its slot among P's tensors, its type in memory, and by how many elements lanes lie apart (0 where
// it is broadcast along them).
template <int SLOT, class T, int64_t STEP>
struct Tensor {};

// Of a program that gathers: set where a position lay outside of its tensor.
template <bool GATHERS>
struct Faults {};
template <>
struct Faults<true> {
  int* fault;
};

template <class P>
struct Places : Faults<P::GATHERS> {
  char* at[P::TENSORS];
};

// Strides in bytes, 0 where a tensor is broadcast.
template <class P>
struct Arguments {
  Places<P> base;
  int64_t stride[P::RANK][P::TENSORS];
  int64_t open[P::RANK];  // sizes of the dimensions that have any

  int64_t size(int dimension) const { return P::OPEN >> dimension & 1 ? open[dimension] : P::domain[dimension]; }
  int64_t points() const {
    int64_t count = 1;
    for (int d = 0; d < P::RANK; ++d) count *= size(d);
    return count;
  }
};

template <class P>
struct Loop {
  int64_t size;
  int64_t stride[P::TENSORS];
  int dimension;  // the innermost of those that were merged
};

// The loops over some dimensions of a domain, outermost first, merged where every tensor's strides agree.
template <class P>
struct Nest {
  Loop<P> loops[P::RANK + 1];
  int depth = 0;
  int64_t points = 1;

  void push(const Arguments<P>& arguments, int dimension) {
    const int64_t size = arguments.size(dimension);
    points *= size;
    if (size == 1) return;
    Loop<P> next{size, {}, dimension};
    for (int t = 0; t < P::TENSORS; ++t) next.stride[t] = arguments.stride[dimension][t];
    if (depth > 0 && merges(loops[depth - 1], next)) {
      next.size *= loops[--depth].size;
    }
    loops[depth++] = next;
  }

  // Moves `places` to the point `index` of this nest and notes its coordinates.
  TW_INLINE void seek(int64_t index, Places<P>& places, int64_t* coordinates) const {
    for (int d = depth - 1; d >= 0; --d) {
      const Loop<P>& loop = loops[d];
      int64_t here = index;
      if (d > 0) {
        here = index % loop.size;
        index /= loop.size;
      }
      for (int t = 0; t < P::TENSORS; ++t) places.at[t] += here * loop.stride[t];
      if (P::INDEXED) coordinates[loop.dimension] = here;
    }
  }

  // Moves on to the next point; `digits` are those of this nest's index.
  TW_INLINE void next(int64_t* digits, Places<P>& places, int64_t* coordinates) const {
    for (int d = depth - 1; d >= 0; --d) {
      const Loop<P>& loop = loops[d];
      const bool over = ++digits[d] == loop.size;
      if (over) digits[d] = 0;
      const int64_t steps = over ? 1 - loop.size : 1;
      for (int t = 0; t < P::TENSORS; ++t) places.at[t] += steps * loop.stride[t];
      if (P::INDEXED) coordinates[loop.dimension] = digits[d];
      if (!over) return;
    }
  }

  TW_INLINE void digits_of(int64_t index, int64_t* digits) const {
    for (int d = depth - 1; d >= 0; index /= loops[d--].size) digits[d] = d > 0 ? index % loops[d].size : index;
  }

  // Takes the innermost loop off.
  Loop<P> pop() {
    if (depth == 0) return {1, {}, P::VECTOR};
    points /= loops[depth - 1].size;
    return loops[--depth];
  }

  // The same of what the lanes run along, whose dimension was pushed last. One that is open and has size 1 here has no loop.
  Loop<P> lanes(const Arguments<P>& arguments) {
    if (P::OPEN >> P::VECTOR & 1 && arguments.size(P::VECTOR) == 1) return {1, {}, P::VECTOR};
    return pop();
  }

 private:
  static bool merges(const Loop<P>& outer, const Loop<P>& inner) {
    if ((P::INDEXED >> outer.dimension | P::INDEXED >> inner.dimension) & 1) return false;
    for (int t = 0; t < P::TENSORS; ++t) {
      if (outer.stride[t] != inner.stride[t] * inner.size) return false;
    }
    return true;
  }
};

// Elements between neighbours along a dimension of a load's tensor, if that is contiguous.
template <class L>
constexpr int64_t dense_stride(int dimension) {
  int64_t stride = 1;
  for (int k = L::RANK - 1; k > dimension; --k) stride *= L::size[k];
  return stride;
}

// The elements by which the lanes of a load lie apart in a contiguous tensor.
template <class P, class L>
constexpr int64_t lane_step() {
  int64_t step = 0;
  for (int k = 0; k < L::RANK; ++k) step += L::step[k][P::VECTOR] * dense_stride<L>(k);
  return step;
}

// The loads of a program, in the order of their slots.
template <class... Loads>
struct LoadList {
  static constexpr int COUNT = sizeof...(Loads);
  template <class Work>
  static TW_INLINE void each(Work work) {
    (work(static_cast<Loads*>(nullptr)), ...);
  }
};

// Whether none of a program's loads can lie outside of its tensor while the lanes from `first` to `last` are at
// `coordinates`, wherever in the reduced dimensions.
template <class P>
TW_INLINE bool surely_within(const int64_t* coordinates, int64_t first, int64_t last) {
  bool within = true;
  P::Loads::each([&](auto* load) TW_LAMBDA {
    using L = std::remove_pointer_t<decltype(load)>;
#pragma GCC unroll 8
    for (int k = 0; k < L::RANK; ++k) {
      if (!(L::CHECKED >> k & 1)) continue;
      int64_t low = L::start[k], high = low;
#pragma GCC unroll 16
      for (int d = 0; d < P::RANK; ++d) {
        const int64_t step = L::step[k][d];
        if (step == 0) continue;
        const bool reduced = P::REDUCED >> d & 1;
        const int64_t from = reduced ? 0 : d == P::VECTOR ? first : coordinates[d];
        const int64_t to = reduced ? P::domain[d] - 1 : d == P::VECTOR ? last : coordinates[d];
        low += step * (step > 0 ? from : to);
        high += step * (step > 0 ? to : from);
      }
      within = within && low >= 0 && high < L::size[k];
    }
  });
  return within;
}

// Lanes from `first` to before `last`.
struct Lanes {
  int first, last;
};

// Where the functors are: LANES elements (or the first `count` of them) at offset `i` from `places` along the vector.
// SURE: no load lies outside of its tensor here.
template <class P, bool PARTIAL_, bool STREAM = false, bool SURE = false>
struct At {
  static constexpr bool PARTIAL = PARTIAL_;
  static constexpr bool ALONG = P::REDUCED >> P::VECTOR & 1;  // whether the lanes lie along what is reduced
  const Places<P>& places;
  const int64_t* coordinates;
  int64_t i;
  int64_t position;  // of this step in the row; of its first lane where the lanes lie along the row
  int count;

  template <int SLOT, class T, int64_t STEP>
  TW_INLINE auto operator()(Tensor<SLOT, T, STEP>) const {
    return lanes_of<STEP>(reinterpret_cast<const T*>(places.at[SLOT]) + i * STEP);
  }

  // The lanes that lie in the load's tensor in all its dimensions.
  template <class L>
  TW_INLINE Lanes within() const {
    Lanes lanes{0, PARTIAL ? count : LANES};
    if constexpr (SURE) return lanes;
#pragma GCC unroll 8
    for (int k = 0; k < L::RANK; ++k) {
      if (!(L::CHECKED >> k & 1)) continue;
      int64_t at = L::start[k];
#pragma GCC unroll 16
      for (int d = 0; d < P::RANK; ++d) {
        if (L::step[k][d] != 0) at += L::step[k][d] * (d == P::VECTOR ? i : coordinates[d]);
      }
      const int64_t step = L::step[k][P::VECTOR], end = at + step * (LANES - 1), size = L::size[k];
      if (at >= 0 && at < size && end >= 0 && end < size) continue;
      if (step == 0) return {0, 0};
      // From the lowest lane that is not before the start, to before the lowest that is past the end.
      const int64_t first = step > 0 ? past(-at, step) : past(at - size + 1, -step);
      const int64_t last = step > 0 ? past(size - at, step) : past(at + 1, -step);
      if (first > lanes.first) lanes.first = first < LANES ? static_cast<int>(first) : LANES;
      if (last < lanes.last) lanes.last = last > 0 ? static_cast<int>(last) : 0;
    }
    return lanes;
  }

  template <class L>
  TW_INLINE Bool inside(L) const {
    if constexpr (SURE) return boolean(true);
    const Lanes lanes = within<L>();
    return lanes_between(lanes.first, lanes.last);
  }

  template <class L, class V>
  TW_INLINE V read(L, V fill) const {
    if constexpr (SURE) return read(L{});
    const Lanes lanes = within<L>();
    if (__builtin_expect(lanes.first == 0 && lanes.last == (PARTIAL ? count : LANES), 1)) return read(L{});
    if (lanes.first >= lanes.last) return fill;
    return where(lanes_between(lanes.first, lanes.last), load_every<lane_step<P, L>()>(first_of<L>(), lanes.first, lanes.last), fill);
  }
  // Without a look at where the tensor ends.
  template <class L>
  TW_INLINE auto read(L) const {
    return lanes_of<lane_step<P, L>()>(first_of<L>());
  }

  // Where `index` says. Outside nothing is read; the call will fail.
  template <class L, class V>
  TW_INLINE auto gather(L, V index) const {
    using T = typename L::Type;
    constexpr int64_t STRIDE = dense_stride<L>(L::GATHERED), SIZE = L::size[L::GATHERED], STEP = lane_step<P, L>();
    const auto outside = [&](int64_t at) TW_LAMBDA {
      const bool out = static_cast<uint64_t>(at) >= static_cast<uint64_t>(SIZE);
      if (__builtin_expect(out, 0)) __atomic_store_n(places.fault, 1, __ATOMIC_RELAXED);
      return out;
    };
    if constexpr (L::VARIES) {
      typename Memory<T>::Raw raw{};
      for (int lane = 0; lane < (PARTIAL ? count : LANES); ++lane) {
        const int64_t at = index[lane];
        if (outside(at)) continue;
        std::memcpy(reinterpret_cast<char*>(&raw) + lane * sizeof(T), first_of<L>() + at * STRIDE + lane * STEP, sizeof(T));
      }
      return Memory<T>::up(raw);
    } else {
      const int64_t at = index[0];
      if (outside(at)) return Memory<T>::up(typename Memory<T>::Raw{});
      return lanes_of<STEP>(first_of<L>() + at * STRIDE);
    }
  }

  template <int SLOT, class T, int64_t STEP>
  TW_INLINE void store(Tensor<SLOT, T, STEP>, typename Memory<T>::Value value) const {
    T* to = reinterpret_cast<T*>(places.at[SLOT]) + i * STEP;
    if constexpr (STEP != 1) {
      tilewright::store_every<STEP>(to, value, STEP == 0 ? 1 : PARTIAL ? count : LANES);
    } else if constexpr (PARTIAL) {
      tilewright::store(to, value, count);
    } else if constexpr (STREAM) {
      tilewright::stream(to, value);
    } else {
      tilewright::store(to, value);
    }
  }

  // Adds to what is there: a sum over rows, of one thread, that stays in its caches.
  template <int SLOT, class T>
  TW_INLINE void add(Tensor<SLOT, T, 1>, typename Memory<T>::Value value) const {
    T* to = reinterpret_cast<T*>(places.at[SLOT]) + i;
    if constexpr (PARTIAL) {
      tilewright::store(to, tilewright::load(to, count) + value, count);
    } else {
      tilewright::store(to, tilewright::load(to) + value);
    }
  }

  // What a row ranks, or each lane's row: its entries STRIDE elements apart.
  template <int64_t STRIDE, int SLOT, class T, int64_t STEP, class E, int LISTS, int COUNT>
  TW_INLINE void store_ranks(Tensor<SLOT, T, STEP>, const E (&entries)[LISTS][COUNT]) const {
    using V = typename Memory<T>::Value;
    using Entry = element_t<V>;
    T* const to = reinterpret_cast<T*>(places.at[SLOT]);
    V ranks{};
    if constexpr (LISTS == 1) {
      for (int k = 0; k < COUNT; k += LANES) {
        const int left = COUNT - k < LANES ? COUNT - k : LANES;
        for (int lane = 0; lane < left; ++lane) ranks[lane] = static_cast<Entry>(entries[0][k + lane]);
        tilewright::store_every<STRIDE>(to + k * STRIDE, ranks, left);
      }
    } else {
      for (int k = 0; k < COUNT; ++k) {
        for (int lane = 0; lane < LISTS; ++lane) ranks[lane] = static_cast<Entry>(entries[lane][k]);
        tilewright::store_every<STEP>(to + i * STEP + k * STRIDE, ranks, PARTIAL ? count : LANES);
      }
    }
  }

  // `value` in the active lanes, `neutral` in the others.
  template <class V>
  TW_INLINE V keep(V value, V neutral) const {
    if constexpr (PARTIAL) {
      return where(first_lanes(count), value, neutral);
    } else {
      return value;
    }
  }

  TW_INLINE I32 positions() const {
    const I32 first = i32(static_cast<int32_t>(position));
    return (P::REDUCED >> P::VECTOR) & 1 ? first + iota() : first;
  }

  // The position along a dimension of the domain.
  template <int DIMENSION, class V>
  TW_INLINE V index() const {
    using T = element_t<V>;
    if constexpr (DIMENSION == P::VECTOR) {
      return splat<V>(static_cast<T>(i)) + __builtin_convertvector(iota(), V);
    } else {
      return splat<V>(static_cast<T>(coordinates[DIMENSION]));
    }
  }

 private:
  template <int64_t STEP, class T>
  TW_INLINE auto lanes_of(const T* from) const {
    if constexpr (STEP == 0) {
      return load_splat(from);
    } else if constexpr (PARTIAL && STEP == 1) {
      return tilewright::load(from, count);
    } else if constexpr (PARTIAL) {
      return load_every<STEP>(from, 0, count);
    } else {
      return load_every<STEP>(from);
    }
  }
  template <class L>
  TW_INLINE const typename L::Type* first_of() const {
    return reinterpret_cast<const typename L::Type*>(places.at[L::SLOT]) + i * lane_step<P, L>();
  }
  // The least whole number n with n * step >= distance.
  static TW_INLINE int64_t past(int64_t distance, int64_t step) {
    return distance <= 0 ? 0 : (distance + step - 1) / step;
  }
};

// K functors' states side by side, as separate members so that each stays in registers.
template <class Pass, int K>
struct Group {
  Pass first;
  Group<Pass, K - 1> rest;

  template <class Step>
  TW_INLINE void each(Step step, int k = 0) {
    step(first, k);
    rest.each(step, k + 1);
  }
  TW_INLINE void merge(const Group& other) {
    first.merge(other.first);
    rest.merge(other.rest);
  }
};
template <class Pass>
struct Group<Pass, 0> {
  template <class Step>
  TW_INLINE void each(Step, int = 0) {}
  TW_INLINE void merge(const Group&) {}
};

struct Range {
  int64_t begin, end;
};

// The share of `total` that falls to `part` of `parts`, in multiples of `grain`.
inline Range share(int64_t total, int64_t grain, int part, int parts) {
  const int64_t grains = (total + grain - 1) / grain;
  const int64_t begin = grains * part / parts * grain, end = grains * (part + 1) / parts * grain;
  return {begin < total ? begin : total, end < total ? end : total};
}

// Calls segment(places, coordinates, first, last, position) for each stretch of `range` within one innermost loop.
template <class P, class Segment>
TW_INLINE void over_segments(const Nest<P>& outer, int64_t length, const Places<P>& base, const int64_t* coordinates,
                             Range range, Segment segment) {
  int64_t mine[P::RANK + 1];
  if (P::INDEXED) std::memcpy(mine, coordinates, sizeof(mine));
  int64_t index = outer.depth == 0 ? 0 : range.begin / length;
  int64_t first = range.begin - index * length, digits[P::RANK + 1];
  Places<P> places = base;
  outer.seek(index, places, mine);
  outer.digits_of(index, digits);
  for (int64_t position = range.begin; position < range.end; first = 0, outer.next(digits, places, mine)) {
    const int64_t left = range.end - position;
    const int64_t last = length - first < left ? length : first + left;
    segment(places, mine, first, last, position);
    position += last - first;
  }
}

}  // namespace tilewright
