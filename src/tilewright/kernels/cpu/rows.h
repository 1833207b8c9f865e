// Rows whose elements lie along the lanes: the walk of pointwise programs (one row: the whole domain) and of reductions
// over the innermost dimension.
#pragma once

#include "walk.h"

namespace tilewright {

#ifndef TW_UNROLL
#define TW_UNROLL 2
#endif

template <class P>
class Rows {
  Arguments<P> arguments;
  Nest<P> kept, outer;  // `outer`: the reduced loops around the contiguous one
  Loop<P> inner{};
  bool streaming;

 public:
  Rows(const Arguments<P>& given, bool stream) : arguments(given) {
    for (int d = 0; d < P::RANK; ++d) {
      if (d != P::VECTOR) (P::REDUCED >> d & 1 ? outer : kept).push(arguments, d);
    }
    outer.push(arguments, P::VECTOR);
    inner = outer.lanes(arguments);
    streaming = stream && (outer.depth == 0 || inner.size % LANES == 0);
    for (int t = P::OPERANDS; t < P::TENSORS; ++t) streaming = streaming && aligned(t);
  }

  int64_t units() const { return kept.points; }
  int64_t length() const { return outer.points * inner.size; }
  static constexpr int64_t GRAIN = 64 * LANES;  // rows are shared out in multiples of this

  // One row.
  struct Unit {
    const Rows& walk;
    Places<P> places;
    int64_t coordinates[P::RANK + 1];
    typename P::Row row;

    // The pass over part of the row; folded, so that its results are the same in all lanes.
    template <class Pass>
    TW_INLINE Group<Pass, 1> sweep(Range range) const {
      return walk.template sweep<Pass>(*this, range);
    }
    template <class Pass>
    TW_INLINE void finish(Group<Pass, 1>& swept) {
      swept.first.finish(row);
    }
    TW_INLINE void write(Range range) const {
      walk.streaming ? walk.template write<true>(*this, range) : walk.template write<false>(*this, range);
    }
    TW_INLINE void close() const { P::store_row(At<P, false>{places, coordinates, 0, 0, LANES}, row); }
  };

  template <class Work>
  TW_INLINE void visit(int64_t index, Work work) const {
    Unit unit{*this, arguments.base, {}, {}};
    kept.seek(index, unit.places, unit.coordinates);
    P::head(At<P, false>{unit.places, unit.coordinates, 0, 0, LANES}, unit.row);
    work(unit);
  }

 private:
  template <class Pass>
  TW_INLINE Group<Pass, 1> sweep(const Unit& unit, Range range) const {
    const typename P::Row row = unit.row;
    Group<Pass, TW_UNROLL> group;
    bool spread = false;  // over more than the first accumulator: not worth merging for short stretches
    int room = BLOCK;
    const auto flush = [&]() TW_LAMBDA {
      group.first.flush();
      if (spread) group.rest.each([](Pass& pass, int) TW_LAMBDA { pass.flush(); });
      room = BLOCK;
    };
    over_segments(outer, inner.size, unit.places, unit.coordinates, range,
                  [&](const Places<P>& places, const int64_t* coordinates, int64_t first, int64_t last, int64_t position) TW_LAMBDA {
      for (int64_t i = first; i < last;) {
        if (room < 1) flush();
        const int64_t steps = (last - i) / (TW_UNROLL * LANES);
        if (TW_UNROLL > 1 && steps >= (spread ? 1 : 8)) {
          spread = true;
          const int now = steps < room ? static_cast<int>(steps) : room;
          room -= now;
          for (int step = 0; step < now; ++step, i += TW_UNROLL * LANES) {
            group.each([&](Pass& pass, int k) TW_LAMBDA {
              const int64_t here = i + k * LANES;
              pass.element(At<P, false>{places, coordinates, here, position + here - first, LANES}, row);
            });
          }
        } else if (i + LANES <= last) {
          group.first.element(At<P, false>{places, coordinates, i, position + i - first, LANES}, row);
          i += LANES;
          --room;
        } else {
          const int left = static_cast<int>(last - i);
          group.first.element(At<P, true>{places, coordinates, i, position + i - first, left}, row);
          i = last;
          --room;
        }
      }
    });
    flush();
    Group<Pass, 1> folded{group.first, {}};
    if (spread) group.rest.each([&](Pass& pass, int) TW_LAMBDA { folded.first.merge(pass); });
    folded.first.fold();
    return folded;
  }

  template <bool STREAM>
  TW_INLINE void write(const Unit& unit, Range range) const {
    const typename P::Row row = unit.row;
    over_segments(outer, inner.size, unit.places, unit.coordinates, range,
                  [&](const Places<P>& places, const int64_t* coordinates, int64_t first, int64_t last, int64_t) TW_LAMBDA {
      int64_t i = first;
      for (; i + LANES <= last; i += LANES) P::element(At<P, false, STREAM>{places, coordinates, i, 0, LANES}, row);
      if (i < last) P::element(At<P, true>{places, coordinates, i, 0, static_cast<int>(last - i)}, row);
    });
    if constexpr (STREAM) stream_fence();
  }

  // Every stretch of this output starts on a vector, so that its full vectors may be streamed.
  bool aligned(int t) const {
    const int64_t size = LANES * P::bytes[t];
    bool fits = reinterpret_cast<uintptr_t>(arguments.base.at[t]) % size == 0;
    for (int d = 0; d < kept.depth; ++d) fits &= kept.loops[d].stride[t] % size == 0;
    for (int d = 0; d < outer.depth; ++d) fits &= outer.loops[d].stride[t] % size == 0;
    return fits;
  }
};

}  // namespace tilewright
