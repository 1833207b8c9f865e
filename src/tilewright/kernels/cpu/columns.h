// Rows side by side in the lanes: the walk of reductions over dimensions outside a contiguous, kept one.
#pragma once

#include "walk.h"

namespace tilewright {

#ifndef TW_COLUMNS
#define TW_COLUMNS 4  // vectors side by side
#endif

// How a line of columns is cut: into blocks of TW_COLUMNS vectors, then single vectors, the last of them partial.
struct Pieces {
  int64_t columns = 0, blocks = 0, singles = 0;

  Pieces() = default;
  explicit Pieces(int64_t size) : columns(size), blocks(size / (TW_COLUMNS * LANES)) {
    singles = (columns - blocks * TW_COLUMNS * LANES + LANES - 1) / LANES;
  }
  int64_t count() const { return blocks + singles; }

  // Calls work(unit) with the walk's unit of a piece, opened at its line.
  template <class Walk, class P, class Work>
  TW_INLINE void visit(const Walk& walk, const Places<P>& base, int64_t index, Work work) const {
    const int64_t line = index / count(), piece = index % count();
    if (piece < blocks) {
      typename Walk::template Unit<TW_COLUMNS, false> unit{walk, base, {}, piece * TW_COLUMNS * LANES, LANES, {}};
      unit.open(line);
      work(unit);
    } else {
      const int64_t first = blocks * TW_COLUMNS * LANES + (piece - blocks) * LANES;
      const int64_t left = columns - first;
      typename Walk::template Unit<1, true> unit{walk, base, {}, first, static_cast<int>(left < LANES ? left : LANES), {}};
      unit.open(line);
      work(unit);
    }
  }
};

constexpr int MOST_WINDOW = 32;

// Points of a short window, whose steps are written out; 0 for rows of other kinds.
template <class P>
constexpr int window_points() {
  int64_t points = P::Loads::COUNT > 0 ? 1 : 0;
  for (int d = 0; d < P::RANK; ++d) points *= P::REDUCED >> d & 1 ? P::domain[d] : 1;
  return points <= MOST_WINDOW ? static_cast<int>(points) : 0;
}

template <class P>
class Columns {
  Arguments<P> arguments;
  Nest<P> kept, outer;  // around the columns; around the innermost reduced loop
  Loop<P> steps{};
  Pieces pieces;

 public:
  Columns(const Arguments<P>& given, bool) : arguments(given) {
    for (int d = 0; d < P::RANK; ++d) (P::REDUCED >> d & 1 ? outer : kept).push(arguments, d);
    pieces = Pieces(kept.lanes(arguments).size);
    steps = outer.pop();
  }

  int64_t units() const { return kept.points * pieces.count(); }
  int64_t length() const { return outer.points * steps.size; }
  static constexpr int64_t GRAIN = 1;

  // K vectors of columns from `first` on; PARTIAL: one vector, of which `count` columns are there.
  template <int K, bool PARTIAL>
  struct Unit {
    const Columns& walk;
    Places<P> places;
    int64_t coordinates[P::RANK + 1];
    int64_t first;
    int count;
    typename P::Row rows[K];

    template <bool SURE = false>
    TW_INLINE At<P, PARTIAL, false, SURE> at(const Places<P>& here, const int64_t* coordinates, int k, int64_t position) const {
      return {here, coordinates, first + k * LANES, position, count};
    }

    template <class Pass>
    TW_INLINE Group<Pass, K> sweep(Range range) const {
      Group<Pass, K> group;
      if constexpr (window_points<P>() > 0) {
        const int64_t last = first + (K - 1) * LANES + count - 1;
        surely_within<P>(coordinates, first, last) ? walk.template over_window<true>(*this, group) : walk.template over_window<false>(*this, group);
        group.each([](Pass& pass, int) TW_LAMBDA { pass.flush(); });
        return group;
      }
      int room = BLOCK;
      walk.over_steps(*this, range, [&](const Places<P>& here, const int64_t* coordinates, int64_t position) TW_LAMBDA {
        group.each([&](Pass& pass, int k) TW_LAMBDA { pass.element(at(here, coordinates, k, position), rows[k]); });
        if (--room == 0) {
          group.each([](Pass& pass, int) TW_LAMBDA { pass.flush(); });
          room = BLOCK;
        }
      });
      group.each([](Pass& pass, int) TW_LAMBDA { pass.flush(); });
      return group;
    }
    template <class Pass>
    TW_INLINE void finish(Group<Pass, K>& swept) {
      swept.each([&](Pass& pass, int k) TW_LAMBDA { pass.finish(rows[k]); });
    }
    TW_INLINE void write(Range range) const {
      walk.over_steps(*this, range, [&](const Places<P>& here, const int64_t* coordinates, int64_t position) TW_LAMBDA {
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) P::element(at(here, coordinates, k, position), rows[k]);
      });
    }
    TW_INLINE void close() const {
      for (int k = 0; k < K; ++k) P::store_row(at(places, coordinates, k, 0), rows[k]);
    }
    TW_INLINE void open(int64_t index) {
      walk.kept.seek(index, places, coordinates);
      for (int k = 0; k < K; ++k) P::head(at(places, coordinates, k, 0), rows[k]);
    }
  };

  template <class Work>
  TW_INLINE void visit(int64_t index, Work work) const {
    pieces.visit(*this, arguments.base, index, work);
  }

 private:
  template <bool SURE, class Unit, class Group>
  TW_INLINE void over_window(const Unit& unit, Group& group) const {
    int64_t mine[P::RANK + 1];
    std::memcpy(mine, unit.coordinates, sizeof(mine));
#pragma GCC unroll 32
    for (int step = 0; step < window_points<P>(); ++step) {
      Places<P> here = unit.places;
      int rest = step;
#pragma GCC unroll 16
      for (int d = P::RANK - 1; d >= 0; --d) {
        if (!(P::REDUCED >> d & 1)) continue;
        mine[d] = rest % P::domain[d];
        rest /= P::domain[d];
#pragma GCC unroll 16
        for (int t = 0; t < P::OPERANDS; ++t) {
          if (P::shape[t][d] > 1) here.at[t] += mine[d] * arguments.stride[d][t];
        }
      }
      group.each([&](auto& pass, int k) TW_LAMBDA { pass.element(unit.template at<SURE>(here, mine, k, step), unit.rows[k]); });
    }
  }

  template <class Unit, class Step>
  TW_INLINE void over_steps(const Unit& unit, Range range, Step step) const {
    over_segments(outer, steps.size, unit.places, unit.coordinates, range,
                  [&](Places<P> here, int64_t* coordinates, int64_t first, int64_t last, int64_t position) TW_LAMBDA {
      for (int t = 0; t < P::TENSORS; ++t) here.at[t] += first * steps.stride[t];
      for (int64_t r = first; r < last; ++r, ++position) {
        if (P::INDEXED) coordinates[steps.dimension] = r;
        step(here, coordinates, position);
        for (int t = 0; t < P::TENSORS; ++t) here.at[t] += steps.stride[t];
      }
    });
  }
};

}  // namespace tilewright
