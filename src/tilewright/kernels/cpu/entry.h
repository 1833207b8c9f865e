// The entry point: checks tensors that come in through tvm-ffi's C ABI, walks the program over the threads.
//
// A program's file ends with TW_EXPORT(Program, Walk), which defines the function `run(tensors..., threads, stream)`. It
// returns 0, or 1 when an operand of a reduction, or one beside loads, is not contiguous along the vector's dimension and
// nothing was done.
#pragma once

#include <omp.h>
#include <tvm/ffi/c_api.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdio>
#include <vector>

#include "columns.h"
#include "rows.h"
#include "scan.h"
#include "tiles.h"

#ifndef TW_GRAIN
#define TW_GRAIN 16384  // elements that one thread works on alone
#endif

namespace tilewright {

template <class... Passes>
struct PassList {
  template <class Work>
  static TW_INLINE void each(Work work) {
    (work(static_cast<Passes*>(nullptr)), ...);
  }
};

// All passes over a whole unit, in this thread.
template <class P, class Unit>
TW_INLINE void work_whole(Unit& unit, Range all) {
  P::Passes::each([&](auto* pass) TW_LAMBDA {
    auto swept = unit.template sweep<std::remove_pointer_t<decltype(pass)>>(all);
    unit.finish(swept);
  });
  if constexpr (P::WRITES_ELEMENTS) unit.write(all);
  unit.close();
}

// All passes over one unit by all threads; parts are merged in order, so that the result depends on their number alone.
template <class P, class Unit>
void work_split(Unit& unit, Range all, int64_t grain, int threads) {
  P::Passes::each([&](auto* pass) TW_LAMBDA {
    using Pass = std::remove_pointer_t<decltype(pass)>;
    using Swept = decltype(unit.template sweep<Pass>(all));
    std::vector<Swept> parts(threads);
#pragma omp parallel num_threads(threads)
    {
      const int team = omp_get_num_threads();
      for (int part = omp_get_thread_num(); part < threads; part += team) {
        const Range mine = share(all.end, grain, part, threads);
        if (mine.begin < mine.end) parts[part] = unit.template sweep<Pass>(mine);
      }
    }
    for (int part = 1; part < threads; ++part) {
      const Range mine = share(all.end, grain, part, threads);
      if (mine.begin < mine.end) parts[0].merge(parts[part]);
    }
    unit.finish(parts[0]);
  });
  if constexpr (P::WRITES_ELEMENTS) {
#pragma omp parallel num_threads(threads)
    {
      const int team = omp_get_num_threads();
      for (int part = omp_get_thread_num(); part < threads; part += team) unit.write(share(all.end, grain, part, threads));
    }
  }
  unit.close();
}

// Shares units out; one thread alone pays for no team.
template <class Work>
void over_threads(int64_t units, int threads, Work work) {
  if (threads < 2) return work({0, units});
#pragma omp parallel num_threads(threads)
  work(share(units, 1, omp_get_thread_num(), omp_get_num_threads()));
}

// Bytes of a part of an output that is summed over the rows.
template <class P>
constexpr int64_t part_bytes(int slot) {
  int64_t bytes = P::bytes[slot];
  for (int d = 0; d < P::RANK; ++d) bytes *= P::REDUCED >> d & 1 ? P::shape[slot][d] : 1;
  return bytes;
}

// Whole parts of the rows to each thread, so that the sums over them don't depend on how many threads there are.
template <class P, class Walk>
void work_parts(const Walk& walk, const Arguments<P>& arguments, Range all, int threads) {
  over_threads(P::PARTS, threads, [&](Range mine) __attribute__((noinline)) {
    for (int64_t part = mine.begin; part < mine.end; ++part) {
      for (int t = P::OPERANDS; t < P::TENSORS; ++t) {
        if (P::summed[t]) std::memset(arguments.base.at[t] + part * part_bytes<P>(t), 0, part_bytes<P>(t));
      }
      const Range rows = share(walk.units(), 1, static_cast<int>(part), P::PARTS);
      for (int64_t u = rows.begin; u < rows.end; ++u) {
        walk.visit(u, [&](auto& unit) TW_LAMBDA {
#pragma GCC unroll 16
          for (int t = P::OPERANDS; t < P::TENSORS; ++t) {
            if (P::summed[t]) unit.places.at[t] += part * part_bytes<P>(t);
          }
          work_whole<P>(unit, all);
        });
      }
    }
  });
}

template <class P, template <class> class Walk>
void run_program(const Arguments<P>& arguments, int threads, bool stream) {
  const Walk<P> walk(arguments, stream);
  const int64_t units = walk.units();
  const Range all{0, walk.length()};
  if (arguments.points() <= TW_GRAIN) threads = 1;
  if constexpr (P::PARTS > 0) return work_parts<P>(walk, arguments, all, threads);
  const bool enough = units >= 4 * threads || all.end < 2 * walk.GRAIN || arguments.points() / units < TW_GRAIN;
  if (threads < 2 || enough) {
    over_threads(units, threads, [&](Range mine) __attribute__((noinline)) {
      for (int64_t u = mine.begin; u < mine.end; ++u) walk.visit(u, [&](auto& unit) TW_LAMBDA { work_whole<P>(unit, all); });
    });
  } else {
    for (int64_t u = 0; u < units; ++u) walk.visit(u, [&](auto& unit) TW_LAMBDA { work_split<P>(unit, all, walk.GRAIN, threads); });
  }
}

template <class P>
void run_tiles(const Arguments<P>& arguments, int threads, bool stream) {
  const Tiles<P> tiles(arguments, stream);
  if (arguments.points() <= TW_GRAIN) threads = 1;
  over_threads(tiles.units(), threads, [&](Range mine) __attribute__((noinline)) {
    for (int64_t u = mine.begin; u < mine.end; ++u) tiles.work(u);
  });
}

// Asks for huge pages under a large output: a fresh one is touched first here, and faults by 4 KB cost more than the work
// (first touch of 64 MB by memset, AMD EPYC of family 25, 2026-11-20: 35 ms; with huge pages 7).
inline void prefer_huge_pages(void* start, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t HUGE = 2 << 20;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(start) + HUGE - 1) & ~(HUGE - 1);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(start) + bytes) & ~(HUGE - 1);
  if (bytes >= 4 * static_cast<int64_t>(HUGE) && first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

inline int refuse(const char* kind, int argument, const char* why) {
  char message[160];
  std::snprintf(message, sizeof(message), "argument %d: %s", argument, why);
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

inline int refuse(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

inline const DLTensor* as_tensor(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  return nullptr;
}

// A tensor among the arguments, where it is what a slot expects; else an error is set.
inline const DLTensor* expected(const TVMFFIAny* values, int argument, int code, int bytes, const int64_t* shape, int rank) {
  const DLTensor* tensor = as_tensor(values[argument]);
  const auto fail = [&](const char* kind, const char* why) -> const DLTensor* { return refuse(kind, argument, why), nullptr; };
  if (tensor == nullptr) return fail("TypeError", "not a tensor");
  if (tensor->device.device_type != kDLCPU) return fail("ValueError", "not on the CPU");
  if (tensor->ndim != rank) return fail("ValueError", "wrong number of dimensions");
  if (tensor->dtype.code != code || tensor->dtype.bits != 8 * bytes) return fail("TypeError", "wrong dtype");
  for (int d = 0; d < rank; ++d) {
    if (tensor->shape[d] != shape[d]) return fail("ValueError", "wrong shape");
  }
  return tensor;
}

inline char* start_of(const DLTensor* tensor) { return static_cast<char*>(tensor->data) + tensor->byte_offset; }

// Places a load at the origin of the domain, and its steps along it. False where its lanes don't lie as they should.
template <class P, class L>
bool place(Arguments<P>& arguments, const DLTensor* tensor) {
  constexpr int t = L::SLOT;
  arguments.base.at[t] = start_of(tensor);
  for (int d = 0; d < P::RANK; ++d) arguments.stride[d][t] = 0;
  int64_t dense = P::bytes[t];
  bool right = true;
  for (int k = L::RANK - 1; k >= 0; --k) {
    const int64_t stride = tensor->strides && L::size[k] > 1 ? tensor->strides[k] * P::bytes[t] : dense;
    arguments.base.at[t] += L::start[k] * stride;
    for (int d = 0; d < P::RANK; ++d) arguments.stride[d][t] += L::step[k][d] * stride;
    right = right && (k != L::GATHERED || stride == dense);
    dense *= L::size[k];
  }
  return right && arguments.stride[P::VECTOR][t] == lane_step<P, L>() * P::bytes[t];
}

template <class P, template <class> class Walk>
int call(const TVMFFIAny* values, int32_t count, TVMFFIAny* result) {
  if (count != P::ARGUMENTS + 2) return refuse("TypeError", count, "wrong number of arguments");
  Arguments<P> arguments;
  bool contiguous = true, right = true;
  for (int d = 0; d < P::RANK; ++d) {  // the first tensor that has an open dimension says its size
    if (!(P::OPEN >> d & 1)) continue;
    int t = 0;
    while (P::shape[t][d] == 1) ++t;
    const DLTensor* tensor = as_tensor(values[P::given[t]]);
    arguments.open[d] = tensor != nullptr && tensor->ndim == P::RANK ? tensor->shape[d] : P::domain[d];
  }
  for (int t = 0; t < P::TENSORS; ++t) {
    if (t == P::OPERANDS - P::Loads::COUNT) t = P::OPERANDS;  // the loads' slots follow
    int64_t shape[P::RANK];
    for (int d = 0; d < P::RANK; ++d) {
      const bool open = (P::OPEN >> d & 1) && P::shape[t][d] > 1;
      shape[d] = open ? arguments.size(d) : P::shape[t][d];
    }
    const DLTensor* tensor = expected(values, P::given[t], P::code[t], P::bytes[t], shape, P::RANK);
    if (tensor == nullptr) return -1;
    arguments.base.at[t] = start_of(tensor);
    int64_t dense = P::bytes[t];
    for (int d = P::RANK - 1; d >= 0; --d) {
      const int64_t stride = tensor->strides ? tensor->strides[d] * P::bytes[t] : dense;
      const bool still = tensor->shape[d] == 1 || (P::summed[t] && !(P::REDUCED >> d & 1));
      arguments.stride[d][t] = still ? 0 : stride;
      dense *= tensor->shape[d];
    }
    if (P::OPEN >> P::VECTOR & 1 && arguments.size(P::VECTOR) == 1) arguments.stride[P::VECTOR][t] = P::lane[t];
    if (t >= P::OPERANDS) prefer_huge_pages(arguments.base.at[t], dense);
    contiguous = contiguous && arguments.stride[P::VECTOR][t] == P::lane[t];
  }
  P::Loads::each([&](auto* load) {
    using L = std::remove_pointer_t<decltype(load)>;
    const DLTensor* tensor = expected(values, P::given[L::SLOT], P::code[L::SLOT], P::bytes[L::SLOT], L::size, L::RANK);
    if (tensor == nullptr) {
      right = false;
    } else {
      contiguous = place<P, L>(arguments, tensor) && contiguous;
    }
  });
  if (!right) return -1;
  [[maybe_unused]] int fault = 0;
  if constexpr (P::GATHERS) arguments.base.fault = &fault;
  const int threads = static_cast<int>(values[P::ARGUMENTS].v_int64);
  constexpr bool plain = P::Loads::COUNT == 0 && P::PARTS == 0 && P::UNIT;
  constexpr bool tiled = plain && std::is_same_v<typename P::Passes, PassList<>>;
  if (contiguous) {
    run_program<P, Walk>(arguments, threads, values[P::ARGUMENTS + 1].v_int64 != 0);
  } else if constexpr (tiled) {
    run_tiles<P>(arguments, threads, values[P::ARGUMENTS + 1].v_int64 != 0);
  }
  if (fault) return refuse("IndexError", "index out of range in self");
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = contiguous || tiled ? 0 : 1;
  return 0;
}

}  // namespace tilewright

#define TW_EXPORT(P, WALK)                                                                                  \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, const TVMFFIAny* values,       \
                                                                      int32_t count, TVMFFIAny* result) {  \
    return tilewright::call<P, tilewright::WALK>(values, count, result);                                    \
  }
