// Scans along one dimension: the walks of programs that keep the running state at every element.
//
// Such a program declares, beside what every program does, REVERSE and EXCLUSIVE, its `Scan` (one of those below),
// `argument(at, row)`, the state of one element, and an `element` that takes the running state too. A row belongs to one
// thread; the scan runs while its elements are written.
//
// A scan has a State, a tuple of vectors; `nothing()`, which joined to a state changes nothing; `of(...)`, the state of an
// element; and `join(before, after)`, which is associative. States of sums, products and recurrences are F64 or I64, wide
// enough that fp32 results are rounded once.
#pragma once

#include <omp.h>

#include "columns.h"

namespace tilewright {

// The passes of a scan: none, since it is no reduction; and yet no pointwise program.
struct Scanned {
  template <class Work>
  static TW_INLINE void each(Work) {}
};

template <class V>
struct One {
  V value;
  template <class F>
  TW_INLINE One with(const One& other, F f) const {
    return {f(value, other.value)};
  }
};

template <class V, class W>
struct Two {
  V first;
  W second;
  template <class F>
  TW_INLINE Two with(const Two& other, F f) const {
    return {f(first, other.first), f(second, other.second)};
  }
};

template <class V>
struct SumScan {
  using State = One<V>;
  static TW_INLINE State nothing() { return {V{}}; }
  static TW_INLINE State of(V value) { return {value}; }
  static TW_INLINE State join(State before, State after) { return {before.value + after.value}; }
};

template <class V>
struct ProductScan {
  using State = One<V>;
  static TW_INLINE State nothing() { return {splat<V>(1)}; }
  static TW_INLINE State of(V value) { return {value}; }
  static TW_INLINE State join(State before, State after) { return {before.value * after.value}; }
};

// h = a * (h before) + b; the state is the a's product and the h of a run that starts from 0.
template <class V>
struct RecurrenceScan {
  using State = Two<V, V>;
  static TW_INLINE State nothing() { return {splat<V>(1), V{}}; }
  static TW_INLINE State of(V a, V b) { return {a, b}; }
  static TW_INLINE State join(State before, State after) {
    return {before.first * after.first, after.first * before.second + after.second};
  }
};

// A maximum and the sum of exp(x - maximum): one exp a join, of a difference that is 0 for equals, infinities among them.
template <class V>
struct LogSumScan {
  using State = Two<V, F64>;
  static TW_INLINE State nothing() { return {lowest<V>(), F64{}}; }
  static TW_INLINE State of(V value) { return {value, f64(1)}; }
  static TW_INLINE State join(State before, State after) {
    const Bool rises = mask(after.first > before.first);
    const V gap = where(mask(after.first == before.first), V{}, after.first - before.first);
    const F64 share = cast<F64>(exp(where(rises, -gap, gap)));
    return {where(rises, after.first, before.first),
            where(rises, before.second * share + after.second, before.second + after.second * share)};
  }
  static TW_INLINE V result(State state) { return state.first + log(cast<V>(state.second)); }
};

// The extremum and the number that goes with it, -1 of nothing: NaN wins, and of equals the latest.
template <class V, class N, bool LARGEST>
struct ExtremumScan {
  using State = Two<V, N>;
  static TW_INLINE State nothing() { return {LARGEST ? lowest<V>() : highest<V>(), splat<N>(-1)}; }
  static TW_INLINE State of(V value, N number) { return {value, number}; }
  static TW_INLINE State join(State before, State after) {
    const Bool reached = LARGEST ? mask(after.first >= before.first) : mask(after.first <= before.first);
    const Bool takes = mask(after.second >= 0) & (isnan(after.first) | (reached & ~isnan(before.first)));
    return {where(takes, after.first, before.first), where(takes, after.second, before.second)};
  }
};
template <class V, class N>
using MaximumScan = ExtremumScan<V, N, true>;
template <class V, class N>
using MinimumScan = ExtremumScan<V, N, false>;

constexpr int64_t WHOLE_ROWS = std::numeric_limits<int64_t>::max() / 4;  // a grain that no row is split by

// Rows whose elements lie along the lanes.
template <class P>
class ScanRows {
  using Scan = typename P::Scan;
  using State = typename Scan::State;
  Arguments<P> arguments;
  Nest<P> kept;
  Loop<P> inner{};
  bool streaming;

 public:
  ScanRows(const Arguments<P>& given, bool stream) : arguments(given), streaming(stream) {
    Nest<P> scanned;
    for (int d = 0; d < P::RANK; ++d) (P::REDUCED >> d & 1 ? scanned : kept).push(arguments, d);
    inner = scanned.pop();
    for (int t = P::OPERANDS; t < P::TENSORS; ++t) streaming = streaming && aligned(t);
  }

  int64_t units() const { return kept.points; }
  int64_t length() const { return inner.size; }
  static constexpr int64_t GRAIN = WHOLE_ROWS;

  struct Unit {
    const ScanRows& walk;
    Places<P> places;
    int64_t coordinates[P::RANK + 1];
    typename P::Row row;

    TW_INLINE void write(Range) const { walk.streaming ? walk.template write<true>(*this) : walk.template write<false>(*this); }
    template <class Swept>
    TW_INLINE void finish(Swept&) const {}
    TW_INLINE void close() const {}
  };

  template <class Work>
  TW_INLINE void visit(int64_t index, Work work) const {
    Unit unit{*this, arguments.base, {}, {}};
    kept.seek(index, unit.places, unit.coordinates);
    P::head(At<P, false>{unit.places, unit.coordinates, 0, 0, LANES}, unit.row);
    work(unit);
  }

 private:
  // Each lane gets the state of the lane BY places before it in the order of the scan, the first ones that of nothing.
  template <int BY>
  static TW_INLINE State shifted(const State& states) {
    return states.with(Scan::nothing(), [](auto lanes, auto nothing) TW_LAMBDA {
      using Lane = signed_t<decltype(lanes)>;
      Lane from{};
      for (int lane = 0; lane < LANES; ++lane) {
        const int source = P::REVERSE ? lane + BY : lane - BY;
        from[lane] = static_cast<element_t<Lane>>(source >= 0 && source < LANES ? source : LANES);
      }
      return __builtin_shuffle(lanes, nothing, from);
    });
  }

  static TW_INLINE State along_lanes(State states) {
    states = Scan::join(shifted<1>(states), states);
    if constexpr (LANES > 2) states = Scan::join(shifted<2>(states), states);
    if constexpr (LANES > 4) states = Scan::join(shifted<4>(states), states);
    if constexpr (LANES > 8) states = Scan::join(shifted<8>(states), states);
    return states;
  }

  template <bool STREAM>
  TW_INLINE void write(const Unit& unit) const {
    const typename P::Row row = unit.row;
    State carry = Scan::nothing();
    const auto step = [&](const auto& at) TW_LAMBDA {
      const State given = P::argument(at, row).with(Scan::nothing(), [&](auto v, auto none) TW_LAMBDA { return at.keep(v, none); });
      const State here = along_lanes(given);
      const State scanned = Scan::join(carry, P::EXCLUSIVE ? shifted<1>(here) : here);
      const State last = here.with(here, [](auto v, auto) TW_LAMBDA { return splat<decltype(v)>(v[P::REVERSE ? 0 : LANES - 1]); });
      carry = Scan::join(carry, last);
      P::element(at, row, scanned);
    };
    const int left = static_cast<int>(inner.size % LANES);
    const int64_t whole = inner.size - left;
    const At<P, true> rest{unit.places, unit.coordinates, whole, 0, left};
    if (P::REVERSE && left > 0) step(rest);
    for (int64_t done = 0; done < whole; done += LANES) {
      const int64_t i = P::REVERSE ? whole - LANES - done : done;
      step(At<P, false, STREAM>{unit.places, unit.coordinates, i, 0, LANES});
    }
    if (!P::REVERSE && left > 0) step(rest);
    if constexpr (STREAM) stream_fence();
  }

  // Every row of this output starts on a vector, so that its full vectors may be streamed.
  bool aligned(int t) const {
    const int64_t size = LANES * P::bytes[t];
    bool fits = reinterpret_cast<uintptr_t>(arguments.base.at[t]) % size == 0;
    for (int d = 0; d < kept.depth; ++d) fits &= kept.loops[d].stride[t] % size == 0;
    return fits;
  }
};

// Rows side by side in the lanes. A unit is a band of neighbouring vectors of columns, whose states stay in the first-level
// cache: so each step reads and writes long stretches, where a few vectors would touch a line or two of every page.
template <class P>
class ScanColumns {
  using Scan = typename P::Scan;
  using State = typename Scan::State;
  static constexpr int BAND = 16 * TW_COLUMNS;  // vectors at most

  Arguments<P> arguments;
  Nest<P> kept;
  Loop<P> steps{};
  int64_t columns, band, bands;  // columns; vectors of a band; bands of a line
  bool streaming;

 public:
  ScanColumns(const Arguments<P>& given, bool stream) : arguments(given), streaming(stream) {
    Nest<P> scanned;
    for (int d = 0; d < P::RANK; ++d) (P::REDUCED >> d & 1 ? scanned : kept).push(arguments, d);
    columns = kept.pop().size;
    steps = scanned.pop();
    const int64_t vectors = (columns + LANES - 1) / LANES, share = kept.points * vectors / (4 * omp_get_max_threads());
    band = share < TW_COLUMNS ? TW_COLUMNS : share < BAND ? share : BAND;
    if (band > vectors) band = vectors;
    bands = (vectors + band - 1) / band;
    for (int t = P::OPERANDS; t < P::TENSORS; ++t) streaming = streaming && aligned(t);
  }

  int64_t units() const { return kept.points * bands; }
  int64_t length() const { return steps.size; }
  static constexpr int64_t GRAIN = WHOLE_ROWS;

  struct Unit {
    const ScanColumns& walk;
    Places<P> places;
    int64_t coordinates[P::RANK + 1];
    int64_t first;  // column
    int whole;      // vectors that are full
    int left;       // columns of one that isn't

    template <bool STREAM, class Step>
    TW_INLINE void each(const Places<P>& here, const int64_t* point, Step step) const {
#pragma GCC unroll 4
      for (int k = 0; k < whole; ++k) step(At<P, false, STREAM>{here, point, first + k * LANES, 0, LANES}, k);
      if (left > 0) step(At<P, true>{here, point, first + whole * LANES, 0, left}, whole);
    }
    TW_INLINE void write(Range) const { walk.streaming ? run<true>() : run<false>(); }
    template <bool STREAM>
    TW_INLINE void run() const {
      typename P::Row rows[BAND];
      State carry[BAND];
      each<false>(places, coordinates, [&](const auto& at, int k) TW_LAMBDA {
        P::head(at, rows[k]);
        carry[k] = Scan::nothing();
      });
      int64_t point[P::RANK + 1];
      if (P::INDEXED) std::memcpy(point, coordinates, sizeof(point));
      for (int64_t done = 0; done < walk.steps.size; ++done) {
        const int64_t step = P::REVERSE ? walk.steps.size - 1 - done : done;
        Places<P> here = places;
        for (int t = 0; t < P::TENSORS; ++t) here.at[t] += step * walk.steps.stride[t];
        if (P::INDEXED) point[walk.steps.dimension] = step;
        each<STREAM>(here, point, [&](const auto& at, int k) TW_LAMBDA {
          const State before = carry[k];
          const State after = Scan::join(before, P::argument(at, rows[k]));
          carry[k] = after;
          P::element(at, rows[k], P::EXCLUSIVE ? before : after);
        });
      }
      if constexpr (STREAM) stream_fence();
    }
    template <class Swept>
    TW_INLINE void finish(Swept&) const {}
    TW_INLINE void close() const {}
  };

  template <class Work>
  TW_INLINE void visit(int64_t index, Work work) const {
    const int64_t first = index % bands * band * LANES;
    const int64_t count = columns - first < band * LANES ? columns - first : band * LANES;
    Unit unit{*this, arguments.base, {}, first, static_cast<int>(count / LANES), static_cast<int>(count % LANES)};
    kept.seek(index / bands, unit.places, unit.coordinates);
    work(unit);
  }

 private:
  // Every line of this output starts on a vector, so that its full vectors may be streamed.
  bool aligned(int t) const {
    const int64_t size = LANES * P::bytes[t];
    bool fits = reinterpret_cast<uintptr_t>(arguments.base.at[t]) % size == 0 && steps.stride[t] % size == 0;
    for (int d = 0; d < kept.depth; ++d) fits &= kept.loops[d].stride[t] % size == 0;
    return fits;
  }
};

}  // namespace tilewright
