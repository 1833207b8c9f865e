// Accumulators of a sweep, one running reduction per lane.
//
// Each is fed with `add(value, at)`, where `at` is the cursor of walk.h: it knows which lanes are active and where they
// lie. `flush` must be called after at most BLOCK additions, `merge` takes in another accumulator's elements, `fold`
// leaves the reduction over all lanes in every lane. Results are read after a flush.
#pragma once

#include "math.h"

namespace tilewright {

constexpr int BLOCK = 64;

template <class V>
TW_INLINE V exchanged(V value, int distance) {  // lane i gets lane i ^ distance
  if constexpr (std::is_same_v<V, Bool>) {
    return {exchanged(value.lanes, distance)};
  } else {
    signed_t<V> from{};
    for (int lane = 0; lane < LANES; ++lane) from[lane] = static_cast<element_t<signed_t<V>>>(lane ^ distance);
    return __builtin_shuffle(value, from);
  }
}

template <class V, class Combine>
TW_INLINE V over_lanes(V value, Combine combine) {
#pragma GCC unroll 4
  for (int distance = 1; distance < LANES; distance *= 2) value = combine(value, exchanged(value, distance));
  return value;
}

template <class V>
TW_INLINE V sum_over_lanes(V value) {
  return over_lanes(value, [](V a, V b) { return a + b; });
}

// a + b exactly, as a rounded sum and what rounding lost (Knuth).
template <class V>
struct TwoSum {
  V sum, lost;
  TW_INLINE TwoSum(V a, V b) {
    sum = a + b;
    const V shadow = sum - a;
    lost = (a - (sum - shadow)) + (b - shadow);
  }
};

// Blocks are summed plainly and added up with compensation, so that long rows lose nothing.
template <class V>
struct Sum {
  V block{}, total{}, lost{};

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    block += at.keep(value, V{});
  }
  TW_INLINE void flush() {
    take(block);
    block = V{};
  }
  TW_INLINE void merge(const Sum& other) {
    take(other.total);
    lost += other.lost;
  }
  TW_INLINE void fold() {
    total = sum_over_lanes(result());
    lost = V{};
  }
  TW_INLINE V result() const {
    if constexpr (std::is_floating_point_v<element_t<V>>) {
      return total - total == V{} ? total + lost : total;  // what was lost on the way to infinity is no number
    } else {
      return total;
    }
  }

 private:
  TW_INLINE void take(V value) {
    if constexpr (std::is_floating_point_v<element_t<V>>) {
      const TwoSum<V> next(total, value);
      total = next.sum;
      lost += next.lost;
    } else {
      total += value;
    }
  }
};

template <class V>
struct Prod {
  V product = splat<V>(element_t<V>(1));

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    product *= at.keep(value, splat<V>(element_t<V>(1)));
  }
  TW_INLINE void flush() {}
  TW_INLINE void merge(const Prod& other) { product *= other.product; }
  TW_INLINE void fold() {
    product = over_lanes(product, [](V a, V b) { return a * b; });
  }
  TW_INLINE V result() const { return product; }
};

template <class V>
TW_INLINE V lowest() {
  using T = element_t<V>;
  if constexpr (std::is_floating_point_v<T>) {
    return splat<V>(-std::numeric_limits<T>::infinity());
  } else {
    return splat<V>(std::numeric_limits<T>::lowest());
  }
}
template <class V>
TW_INLINE V highest() {
  using T = element_t<V>;
  if constexpr (std::is_floating_point_v<T>) {
    return splat<V>(std::numeric_limits<T>::infinity());
  } else {
    return splat<V>(std::numeric_limits<T>::max());
  }
}
template <>
TW_INLINE Bool lowest<Bool>() {
  return boolean(false);
}
template <>
TW_INLINE Bool highest<Bool>() {
  return boolean(true);
}

template <class V>
struct Max {
  V best = lowest<V>();

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    best = maximum(best, at.keep(value, lowest<V>()));
  }
  TW_INLINE void flush() {}
  TW_INLINE void merge(const Max& other) { best = maximum(best, other.best); }
  TW_INLINE void fold() {
    best = over_lanes(best, [](V a, V b) { return maximum(a, b); });
  }
  TW_INLINE V result() const { return best; }
};

template <class V>
struct Min {
  V best = highest<V>();

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    best = minimum(best, at.keep(value, highest<V>()));
  }
  TW_INLINE void flush() {}
  TW_INLINE void merge(const Min& other) { best = minimum(best, other.best); }
  TW_INLINE void fold() {
    best = over_lanes(best, [](V a, V b) { return minimum(a, b); });
  }
  TW_INLINE V result() const { return best; }
};

struct Any : Max<Bool> {};
struct All : Min<Bool> {};

// Position of the extremum: NaN wins, then the first position. A lane that has seen nothing stands at -1.
template <class V, bool LARGEST>
struct ArgExtremum {
  V best{};
  I32 position = i32(-1);

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    take(value, at.keep(at.positions(), i32(-1)));
  }
  TW_INLINE void flush() {}
  TW_INLINE void merge(const ArgExtremum& other) { take(other.best, other.position); }
  TW_INLINE void fold() {
    for (int distance = 1; distance < LANES; distance *= 2) {
      take(exchanged(best, distance), exchanged(position, distance));
    }
  }
  TW_INLINE I64 result() const { return __builtin_convertvector(position, I64); }

 private:
  TW_INLINE void take(V value, I32 at) {
    const Bool nan = isnan(value), best_nan = isnan(best);
    const Bool ahead = (LARGEST ? mask(value > best) : mask(value < best)) | (nan & ~best_nan);
    const Bool level = mask(value == best) | (nan & best_nan);
    const Bool earlier{at < position};
    const Bool seen{at >= 0}, first{position < 0};
    const Bool wins = seen & (first | (~(best_nan & ~nan) & (ahead | (level & earlier))));
    best = where(wins, value, best);
    position = where(wins, at, position);
  }
};
template <class V>
using ArgMax = ArgExtremum<V, true>;
template <class V>
using ArgMin = ArgExtremum<V, false>;

// The first COUNT elements of each of LISTS rows in order: one row along all lanes, or a row in each.
template <class V, int COUNT, int LISTS>
struct Ranked {
  element_t<V> values[LISTS][COUNT];
  int32_t positions[LISTS][COUNT];
};

// Keeps them sorted: NaN is the greatest, of equals the first position comes first. Most elements of a long row come after
// the last of a full list, which one comparison of all lanes tells.
template <class V, int COUNT, int LISTS, bool LARGEST>
struct Ranking {
  using T = element_t<V>;
  Ranked<V, COUNT, LISTS> ranked;
  int held[LISTS] = {};
  V last{};                  // of a full list
  Bool open = boolean(true);  // whether it isn't full

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    Bool wanted = open | mask(LARGEST ? value > last : value < last);
    if constexpr (std::is_floating_point_v<T>) {
      wanted = wanted | (LARGEST ? isnan(value) & ~isnan(last) : isnan(last) & ~isnan(value));
    }
    if constexpr (At::PARTIAL) wanted = wanted & first_lanes(at.count);
    if (__builtin_expect(any_lane(wanted), 0)) take(value, at.positions(), wanted);
  }
  TW_INLINE void flush() {}
  TW_INLINE void fold() {}
  void merge(const Ranking& other) {
    for (int list = 0; list < LISTS; ++list) {
      for (int k = 0; k < other.held[list]; ++k) insert(list, other.ranked.values[list][k], other.ranked.positions[list][k]);
    }
  }

 private:
  static bool ahead(T a, T b) { return LARGEST ? a > b || (a != a && b == b) : a < b || (b != b && a == a); }

  __attribute__((noinline)) void take(V value, I32 positions, Bool wanted) {
    for (int lane = 0; lane < LANES; ++lane) {
      if (wanted.lanes[lane]) insert(LISTS == 1 ? 0 : lane, value[lane], positions[lane]);
    }
  }
  void insert(int list, T value, int32_t position) {
    T* const values = ranked.values[list];
    int32_t* const positions = ranked.positions[list];
    const auto before = [&](int k) {
      return ahead(value, values[k]) || (!ahead(values[k], value) && position < positions[k]);
    };
    int place = held[list];
    if (place == COUNT) {
      if (!before(--place)) return;
    } else {
      ++held[list];
    }
    for (; place > 0 && before(place - 1); --place) {
      values[place] = values[place - 1];
      positions[place] = positions[place - 1];
    }
    values[place] = value;
    positions[place] = position;
    if (held[list] < COUNT) return;
    if constexpr (LISTS == 1) {
      last = splat<V>(values[COUNT - 1]);
      open = boolean(false);
    } else {
      last[list] = values[COUNT - 1];
      open.lanes[list] = 0;
    }
  }
};
template <class V, int COUNT, int LISTS>
using Largest = Ranking<V, COUNT, LISTS, true>;
template <class V, int COUNT, int LISTS>
using Smallest = Ranking<V, COUNT, LISTS, false>;

template <class V>
TW_INLINE V median(V a, V b, V c) {
  const V low = a < b ? a : b, high = a < b ? b : a;
  return c < low ? low : (c > high ? high : c);
}

// Mean and sum of squared deviations. A block is summed relative to the mean so far, so that little cancels; at the start
// relative to the median of three neighbours' first elements, which one outlier can't spoil. Where lanes are rows of their
// own, which may lie far from one another, to the median of a lane's first three. Blocks are combined by Chan, Golub and
// LeVeque's update.
template <class V>
struct Moments {
  using T = element_t<V>;
  V shift{}, sum{}, squares{}, partial{};  // the open block: partial counts the additions that were not for all lanes
  int full = 0, opening = 0;  // of three elements that decide on the shift, so many were seen
  bool closed = false;  // whether a block was flushed
  V count{}, mean{}, mean_low{}, spread{}, first{}, second{};

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    if (__builtin_expect(opening < 3, 0)) {
      const V start = at.keep(value, splat<V>(value[0]));  // the first lane is always active
      if constexpr (At::ALONG) {
        shift = median(start, exchanged(start, 1), exchanged(start, 2));
        opening = 3;
      } else {
        begin(start, at);
      }
    }
    const V distance = at.keep(value - shift, V{});
    sum += distance;
    squares = fma(distance, distance, squares);
    if constexpr (At::PARTIAL) {
      partial += at.keep(splat<V>(T(1)), V{});
    } else {
      ++full;
    }
  }
  TW_INLINE void flush() {
    const V added = partial + T(full);
    const V safe = added == T(0) ? splat<V>(T(1)) : added;
    const V block_mean = sum / safe;
    const V block_spread = squares - sum * block_mean;
    if (closed) {
      take(added, shift, block_mean, block_spread);
    } else {
      count = added;
      mean = shift + block_mean;
      mean_low = block_mean - (mean - shift);
      spread = block_spread;
      closed = true;
    }
    shift = count == T(0) ? shift : mean;
    sum = squares = partial = V{};
    full = 0;
    if (opening > 0) opening = 3;
  }
  TW_INLINE void merge(const Moments& other) { take(other.count, other.mean, other.mean_low, other.spread); }
  TW_INLINE void fold() {
    const V all = sum_over_lanes(count);
    const V anchor = splat<V>(mean[0]);
    const V distance = count == T(0) ? V{} : (mean - anchor) + mean_low;
    const V offset = sum_over_lanes(distance * count) / all;
    const V away = distance - offset;
    spread = sum_over_lanes(spread + (count == T(0) ? V{} : away * away * count));
    count = all;
    mean = anchor + offset;
    mean_low = offset - (mean - anchor);
  }
  TW_INLINE V result_0() const { return mean + mean_low; }
  TW_INLINE V result_1() const { return spread < T(0) ? V{} : spread; }

 private:
  // Of a lane's first three elements the median is the shift: what was added relative to the first is added anew.
  template <class At>
  TW_INLINE void begin(V value, const At& at) {
    if (opening == 0) {
      shift = first = value;
    } else if (opening == 1) {
      second = value;
    } else {
      shift = median(first, second, value);
      const V one = at.keep(first - shift, V{}), two = at.keep(second - shift, V{});
      sum = one + two;
      squares = fma(one, one, two * two);
    }
    ++opening;
  }
  TW_INLINE void take(V added, V high, V low, V squared) {
    const V together = count + added;
    const V safe = together == T(0) ? splat<V>(T(1)) : together;
    const V delta = (high - mean) + (low - mean_low);
    const V share = added / safe;
    const V step = mean_low + (count == T(0) ? low : delta * share);
    const V from = count == T(0) ? high : mean;
    const V next = from + step;
    spread = added == T(0) ? spread : (count == T(0) ? squared : spread + squared + delta * delta * (count * share));
    mean_low = added == T(0) ? mean_low : step - (next - from);
    mean = added == T(0) ? mean : next;
    count = together;
  }
};

// Maximum and sum of exp(x - maximum). A block's values wait in a buffer until its maximum is known: one exp an element.
template <class V>
struct SoftmaxStats {
  using T = element_t<V>;
  V waiting[BLOCK];
  int held = 0;
  bool closed = false;  // whether a block was flushed
  V block_top = lowest<V>();
  V top = lowest<V>(), total{};

  SoftmaxStats() = default;
  SoftmaxStats(const SoftmaxStats& other) : closed(other.closed), top(other.top), total(other.total) {}  // of flushed ones: nothing waits
  SoftmaxStats& operator=(const SoftmaxStats& other) {
    closed = other.closed;
    top = other.top;
    total = other.total;
    return *this;
  }

  template <class At>
  TW_INLINE void add(V value, const At& at) {
    const V kept = at.keep(value, lowest<V>());
    waiting[held++] = kept;
    block_top = maximum(block_top, kept);
  }
  TW_INLINE void flush() {
    const V next = maximum(top, block_top);
    const V origin = finite_origin(next);
    V even = closed ? total * exp(top - origin) : V{}, odd{};
    closed = true;
    int k = 0;
    for (; k + 2 <= held; k += 2) {
      even += exp(waiting[k] - origin);
      odd += exp(waiting[k + 1] - origin);
    }
    if (k < held) even += exp(waiting[k] - origin);
    total = even + odd;
    top = next;
    block_top = lowest<V>();
    held = 0;
  }
  TW_INLINE void merge(const SoftmaxStats& other) {
    const V next = maximum(top, other.top);
    const V origin = finite_origin(next);
    total = total * exp(top - origin) + other.total * exp(other.top - origin);
    top = next;
  }
  TW_INLINE void fold() {
    const V next = over_lanes(top, [](V a, V b) { return maximum(a, b); });
    total = sum_over_lanes(total * exp(top - finite_origin(next)));
    top = next;
  }
  TW_INLINE V result_0() const { return top; }
  TW_INLINE V result_1() const { return top == lowest<V>() ? splat<V>(T(NAN)) : total; }

 private:
  // Lanes that hold only -inf so far count from 0: exp(-inf - 0) is the 0 that they are worth.
  static TW_INLINE V finite_origin(V value) { return value == lowest<V>() ? V{} : value; }
};

}  // namespace tilewright
