// Scans along one dimension: the walks of programs that keep the running state at every element.
//
// Such a program declares, beside what every program does, REVERSE and EXCLUSIVE, how states join (`Scan`: SumScan or
// ProductScan of F64 or I64, wide enough that fp32 results are rounded once), `argument(at, row)` and an `element` that
// takes the scanned value too. A row belongs to one thread; the scan runs while its elements are written.
#pragma once

#include "columns.h"

namespace tilewright {

// The passes of a scan: none, since it is no reduction; and yet no pointwise program.
struct Scanned {
  template <class Work>
  static TW_INLINE void each(Work) {}
};

template <class V>
struct SumScan {
  using Value = V;
  static TW_INLINE V nothing() { return V{}; }
  static TW_INLINE V join(V before, V after) { return before + after; }
};

template <class V>
struct ProductScan {
  using Value = V;
  static TW_INLINE V nothing() { return splat<V>(1); }
  static TW_INLINE V join(V before, V after) { return before * after; }
};

constexpr int64_t WHOLE_ROWS = std::numeric_limits<int64_t>::max() / 4;  // a grain that no row is split by

// Rows whose elements lie along the lanes.
template <class P>
class ScanRows {
  using Scan = typename P::Scan;
  using V = typename Scan::Value;
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
  static TW_INLINE V shifted(V states) {
    I64 from{};
    for (int lane = 0; lane < LANES; ++lane) {
      const int source = P::REVERSE ? lane + BY : lane - BY;
      from[lane] = source >= 0 && source < LANES ? source : LANES;
    }
    return __builtin_shuffle(states, Scan::nothing(), from);
  }

  static TW_INLINE V along_lanes(V states) {
    states = Scan::join(shifted<1>(states), states);
    if constexpr (LANES > 2) states = Scan::join(shifted<2>(states), states);
    if constexpr (LANES > 4) states = Scan::join(shifted<4>(states), states);
    return states;
  }

  template <bool STREAM>
  TW_INLINE void write(const Unit& unit) const {
    const typename P::Row row = unit.row;
    V carry = Scan::nothing();
    const auto step = [&](const auto& at) TW_LAMBDA {
      const V here = along_lanes(at.keep(P::argument(at, row), Scan::nothing()));
      const V scanned = Scan::join(carry, P::EXCLUSIVE ? shifted<1>(here) : here);
      carry = Scan::join(carry, splat<V>(here[P::REVERSE ? 0 : LANES - 1]));
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

// Rows side by side in the lanes.
template <class P>
class ScanColumns {
  using Scan = typename P::Scan;
  using V = typename Scan::Value;
  Arguments<P> arguments;
  Nest<P> kept;
  Loop<P> steps{};
  Pieces pieces;

 public:
  ScanColumns(const Arguments<P>& given, bool) : arguments(given) {
    Nest<P> scanned;
    for (int d = 0; d < P::RANK; ++d) (P::REDUCED >> d & 1 ? scanned : kept).push(arguments, d);
    pieces = Pieces(kept.pop().size);
    steps = scanned.pop();
  }

  int64_t units() const { return kept.points * pieces.count(); }
  int64_t length() const { return steps.size; }
  static constexpr int64_t GRAIN = WHOLE_ROWS;

  // K vectors of columns from `first` on; PARTIAL: one vector, of which `count` columns are there.
  template <int K, bool PARTIAL>
  struct Unit {
    const ScanColumns& walk;
    Places<P> places;
    int64_t coordinates[P::RANK + 1];
    int64_t first;
    int count;
    typename P::Row rows[K];

    TW_INLINE At<P, PARTIAL> at(const Places<P>& here, const int64_t* point, int k) const {
      return {here, point, first + k * LANES, 0, count};
    }
    TW_INLINE void open(int64_t line) {
      walk.kept.seek(line, places, coordinates);
      for (int k = 0; k < K; ++k) P::head(at(places, coordinates, k), rows[k]);
    }
    TW_INLINE void write(Range) const {
      V carry[K];
      for (int k = 0; k < K; ++k) carry[k] = Scan::nothing();
      int64_t point[P::RANK + 1];
      if (P::INDEXED) std::memcpy(point, coordinates, sizeof(point));
      for (int64_t done = 0; done < walk.steps.size; ++done) {
        const int64_t step = P::REVERSE ? walk.steps.size - 1 - done : done;
        Places<P> here = places;
        for (int t = 0; t < P::TENSORS; ++t) here.at[t] += step * walk.steps.stride[t];
        if (P::INDEXED) point[walk.steps.dimension] = step;
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
          const At<P, PARTIAL> place = at(here, point, k);
          const V before = carry[k];
          carry[k] = Scan::join(before, P::argument(place, rows[k]));
          P::element(place, rows[k], P::EXCLUSIVE ? before : carry[k]);
        }
      }
    }
    template <class Swept>
    TW_INLINE void finish(Swept&) const {}
    TW_INLINE void close() const {}
  };

  template <class Work>
  TW_INLINE void visit(int64_t index, Work work) const {
    pieces.visit(*this, arguments.base, index, work);
  }
};

}  // namespace tilewright
