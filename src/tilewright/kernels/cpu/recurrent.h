// The steps of a recurrent layer, in one direction or both: h W_hh^T, the gates and the states of a step in one pass.
//
//   lanes     hidden units: a block of LANES of them, with all their gates, of a few rows of the batch is a unit of work
//   weights   packed once a call, [block][k][gate][lane], so that they are read in order
//   states    in fp32: h of this step and of the next, c; what the sequence holds is rounded to its type
//
// Threads share the units out and meet at a barrier after each step; a step that is small is one thread's.
#pragma once

#include "entry.h"

#ifndef TW_ROWS
#define TW_ROWS 6  // of the batch, at most, whose sums are in registers
#endif

namespace tilewright {

enum class Cell { LSTM, GRU, TANH, RELU };
constexpr int64_t SMALL_STEP = 1 << 16;  // products of a step that pay for no second thread

// The layer of a program P in one call: where its tensors begin. All are contiguous.
template <class P>
struct RecurrentLayer {
  using T = typename P::Element;
  static constexpr int GATES = P::CELL == Cell::LSTM ? 4 : P::CELL == Cell::GRU ? 3 : 1;
  static constexpr int STATES = P::CELL == Cell::LSTM ? 2 : 1;
  static constexpr int64_t BLOCKS = (P::HIDDEN + LANES - 1) / LANES, WIDTH = BLOCKS * LANES;
  static constexpr int64_t GROUPS = (P::BATCH + TW_ROWS - 1) / TW_ROWS, ROWS = (P::BATCH + GROUPS - 1) / GROUPS;
  static constexpr int64_t LAST = P::BATCH - (P::BATCH - 1) / ROWS * ROWS;  // rows of the last group
  static constexpr int64_t UNITS = P::DIRECTIONS * BLOCKS * GROUPS;

  const T *products[P::DIRECTIONS], *weights[P::DIRECTIONS], *biases[P::DIRECTIONS], *initial[STATES];
  T *sequence, *final[STATES];
  int64_t step, row;  // of the products
  std::vector<float> packed, bias, now[2], cells;

  RecurrentLayer()
      : packed(P::DIRECTIONS * BLOCKS * P::HIDDEN * GATES * LANES), bias(P::DIRECTIONS * GATES * WIDTH),
        now{std::vector<float>(P::DIRECTIONS * P::BATCH * WIDTH), std::vector<float>(P::DIRECTIONS * P::BATCH * WIDTH)},
        cells(STATES > 1 ? P::DIRECTIONS * P::BATCH * WIDTH : 0) {}

  static float number(const T* at) { return load_splat(at)[0]; }

  void pack(int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t d = i / BLOCKS, begin = i % BLOCKS * LANES;
      float* to = packed.data() + i * P::HIDDEN * GATES * LANES;
      for (int lane = 0; lane < LANES && begin + lane < P::HIDDEN; ++lane) {
        for (int g = 0; g < GATES; ++g) {
          const T* from = weights[d] + (g * P::HIDDEN + begin + lane) * P::HIDDEN;
          for (int64_t k = 0; k < P::HIDDEN; ++k) to[(k * GATES + g) * LANES + lane] = number(from + k);
          if (biases[d] != nullptr) bias[(d * GATES + g) * WIDTH + begin + lane] = number(biases[d] + g * P::HIDDEN + begin + lane);
        }
      }
    }
  }

  void copy_states(bool in) {
    for (int64_t i = 0; i < P::DIRECTIONS * P::BATCH; ++i) {
      for (int64_t j = 0; j < P::HIDDEN; j += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, P::HIDDEN - j));
        for (int s = 0; s < STATES; ++s) {
          float* own = (s ? cells : now[in ? 0 : P::STEPS % 2]).data() + i * WIDTH + j;
          if (in) tilewright::store(own, tilewright::load(initial[s] + i * P::HIDDEN + j, count));
          else if (final[s] != nullptr) tilewright::store(final[s] + i * P::HIDDEN + j, tilewright::load(own), count);
        }
      }
    }
  }

  // R rows of the batch from `b` on, of the hidden units of `block`.
  template <int R>
  TW_INLINE void work(int64_t t, int64_t d, int64_t block, int64_t b) {
    const float* h = now[t % 2].data() + (d * P::BATCH + b) * WIDTH;
    const float* w = packed.data() + (d * BLOCKS + block) * P::HIDDEN * GATES * LANES;
    F32 sums[R][GATES];
#pragma GCC unroll 4
    for (int g = 0; g < GATES; ++g) {
      const F32 first = tilewright::load(bias.data() + (d * GATES + g) * WIDTH + block * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sums[r][g] = first;
    }
    for (int64_t k = 0; k < P::HIDDEN; ++k, w += GATES * LANES) {
      F32 own[GATES];
#pragma GCC unroll 4
      for (int g = 0; g < GATES; ++g) own[g] = tilewright::load(w + g * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F32 x = f32(h[r * WIDTH + k]);
#pragma GCC unroll 4
        for (int g = 0; g < GATES; ++g) sums[r][g] = fma(x, own[g], sums[r][g]);
      }
    }
    for (int r = 0; r < R; ++r) finish(d ? P::STEPS - 1 - t : t, t, d, block, b + r, sums[r]);
  }

  // The gates and the states of one row of the batch; `time` is where the sequence is read and written.
  TW_INLINE void finish(int64_t time, int64_t t, int64_t d, int64_t block, int64_t b, const F32* sums) {
    const int64_t j = block * LANES, at = (d * P::BATCH + b) * WIDTH + j;
    const int count = static_cast<int>(std::min<int64_t>(LANES, P::HIDDEN - j));
    const T* from = products[d] + time * step + b * row + j;
    F32 x[GATES];
    for (int g = 0; g < GATES; ++g) x[g] = tilewright::load(from + g * P::HIDDEN, count);
    F32 h;
    if constexpr (P::CELL == Cell::LSTM) {
      const F32 forget = sigmoid(x[1] + sums[1]), in = sigmoid(x[0] + sums[0]);
      const F32 c = forget * tilewright::load(cells.data() + at) + in * tanh(x[2] + sums[2]);
      tilewright::store(cells.data() + at, c);
      h = sigmoid(x[3] + sums[3]) * tanh(c);
    } else if constexpr (P::CELL == Cell::GRU) {
      const F32 z = sigmoid(x[1] + sums[1]);
      const F32 n = tanh(x[2] + sigmoid(x[0] + sums[0]) * sums[2]);
      h = n + z * (tilewright::load(now[t % 2].data() + at) - n);
    } else if constexpr (P::CELL == Cell::TANH) {
      h = tanh(x[0] + sums[0]);
    } else {
      h = x[0] + sums[0];
      h = where(mask(h < 0.0f), F32{}, h);  // keeps NaN
    }
    tilewright::store(now[(t + 1) % 2].data() + at, h);
    if (sequence != nullptr) {
      tilewright::store(sequence + ((time * P::BATCH + b) * P::DIRECTIONS + d) * P::HIDDEN + j, h, count);
    }
  }

  void unit(int64_t t, int64_t number) {
    const int64_t group = number % GROUPS, i = number / GROUPS, b = group * ROWS;
    if (LAST == ROWS || b + ROWS <= P::BATCH) work<ROWS>(t, i / BLOCKS, i % BLOCKS, b);
    else work<LAST>(t, i / BLOCKS, i % BLOCKS, b);
  }

  void run(int threads) {
    if (P::DIRECTIONS * P::BATCH * GATES * P::HIDDEN * P::HIDDEN < SMALL_STEP) threads = 1;
    threads = static_cast<int>(std::min<int64_t>(threads, UNITS));
    copy_states(true);
    if (threads < 2) {
      pack(0, P::DIRECTIONS * BLOCKS);
      for (int64_t t = 0; t < P::STEPS; ++t) {
        for (int64_t u = 0; u < UNITS; ++u) unit(t, u);
      }
    } else {
#pragma omp parallel num_threads(threads)
      {
        const int team = omp_get_num_threads(), me = omp_get_thread_num();
        const Range blocks = share(P::DIRECTIONS * BLOCKS, 1, me, team), mine = share(UNITS, 1, me, team);
        pack(blocks.begin, blocks.end);
#pragma omp barrier
        for (int64_t t = 0; t < P::STEPS; ++t) {
          for (int64_t u = mine.begin; u < mine.end; ++u) unit(t, u);
#pragma omp barrier
        }
      }
    }
    copy_states(false);
  }
};

// A contiguous tensor of `elements`, or, where that may be, none at all. False where there is another: an error is set.
template <class T>
bool dense(T*& at, const TVMFFIAny* values, int argument, int code, int64_t elements, bool optional) {
  const DLTensor* tensor = as_tensor(values[argument]);
  if (tensor == nullptr) return refuse("TypeError", argument, "not a tensor"), false;
  int64_t count = 1, step = 1;
  for (int d = 0; d < tensor->ndim; ++d) count *= tensor->shape[d];
  if (count == 0 && optional) return at = nullptr, true;
  for (int d = tensor->ndim - 1; d >= 0; --d) {
    if (tensor->strides && tensor->shape[d] > 1 && tensor->strides[d] != step) return refuse("ValueError", argument, "not contiguous"), false;
    step *= tensor->shape[d];
  }
  const bool typed = tensor->dtype.code == code && tensor->dtype.bits == 8 * sizeof(T);
  if (tensor->device.device_type != kDLCPU || !typed || count != elements) return refuse("ValueError", argument, "wrong device, dtype or size"), false;
  at = reinterpret_cast<T*>(start_of(tensor));
  return true;
}

// run(products .., weights .., biases .., states .., sequence, final .., threads, batch first)
template <class P>
int recurrent(const TVMFFIAny* values, int32_t count, TVMFFIAny* result) {
  using Layer = RecurrentLayer<P>;
  constexpr int D = P::DIRECTIONS, S = Layer::STATES;
  constexpr int64_t ROWS = Layer::GATES * P::HIDDEN, STATE = D * P::BATCH * P::HIDDEN;
  constexpr int TENSORS = (P::BIAS ? 3 : 2) * D + 2 * S + 1;
  if (count != TENSORS + 2) return refuse("TypeError", count, "wrong number of arguments");
  Layer layer;
  int i = 0;
  bool right = true;
  const auto take = [&](auto*& at, int64_t elements, bool optional) {
    using T = std::remove_const_t<std::remove_pointer_t<std::remove_reference_t<decltype(at)>>>;
    T* found = nullptr;
    right = right && dense<T>(found, values, i++, P::CODE, elements, optional);
    at = found;
  };
  for (auto& x : layer.products) take(x, P::STEPS * P::BATCH * ROWS, false);
  for (auto& x : layer.weights) take(x, ROWS * P::HIDDEN, false);
  for (auto& x : layer.biases) {
    if constexpr (P::BIAS) take(x, ROWS, false);
    else x = nullptr;
  }
  for (auto& x : layer.initial) take(x, STATE, false);
  take(layer.sequence, P::STEPS * STATE, true);
  for (auto& x : layer.final) take(x, STATE, true);
  if (!right) return -1;
  const bool batch_first = values[TENSORS + 1].v_int64 != 0;
  layer.step = batch_first ? ROWS : P::BATCH * ROWS;
  layer.row = batch_first ? P::STEPS * ROWS : ROWS;
  layer.run(static_cast<int>(values[TENSORS].v_int64));
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}

}  // namespace tilewright

#define TW_EXPORT_RECURRENT(P)                                                                              \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, const TVMFFIAny* values,       \
                                                                      int32_t count, TVMFFIAny* result) {  \
    return tilewright::recurrent<P>(values, count, result);                                                 \
  }
