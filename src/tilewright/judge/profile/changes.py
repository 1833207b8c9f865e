"""The three changes that are most likely to pay: rules over the evidence, each with the share of its kernel's time that
it may win. A rule's share is a guess that orders them, never a promise; Nsight Compute's own reckoning counts where it
has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...facts.outcome import Launches
from ...facts.problem import Target
from ...facts.profile import Diagnosis, KernelProfile, Limit
from .counters import Advice
from .limits import BUSY, USED, ProfiledCall, rates, transcendental_share
from .origins import OWN

MOST = 3
_WORDS: dict[Limit, str] = {
    "memory": "the memory's bandwidth", "cache": "the bandwidth of the caches",
    "shared memory": "shared memory (bank conflicts)", "tensor cores": "the tensor cores",
    "arithmetic": "arithmetic units", "latency": "latency: no unit is busy, warps wait",
    "parallelism": "too few CTAs for the multiprocessors", "spills": "registers that spill to local memory",
    "launches": "the host, which starts the kernels", "unknown": "nothing that can be seen without counters",
}  # fmt: skip
_WAITS = {  # what warps wait for (stall reasons of Nsight Compute) -> what to do
    "long scoreboard": "more loads in flight: wider vectors, unrolling, or asynchronous copies several stages deep",
    "short scoreboard": "less traffic through shared memory and special functions, or more of it in flight at once",
    "mio throttle": "fewer instructions on shared memory and shuffles: wider ones, registers instead",
    "lg throttle": "fewer and wider loads and stores: 16 bytes a lane",
    "tex throttle": "fewer and wider loads: 16 bytes a lane",
    "barrier": "fewer barriers, or smaller CTAs of which several are resident: warps wait for one another",
    "membar": "fewer memory fences",
    "wait": "more independent instructions between dependent ones",
    "math pipe throttle": "fewer instructions on the busiest unit: cheaper formulas, packed or fused ones",
    "no instruction": "shorter code in the loop: instructions have to be fetched",
    "branch resolving": "fewer branches: predicates and selections",
    "dispatch stall": "another mix of instructions: the dispatcher is blocked",
    "drain": "fewer stores at the end of a CTA: warps wait until they are written",
    "gmma": "more products in flight before they are waited for, and loads that run ahead of them",
    "sleeping": "less waiting in loops",
}

Idea = tuple[float, str]  # the share of the call's time that it may win, and what to do


def diagnosis(
    kernels: Sequence[KernelProfile], call: ProfiledCall, *, launches: Launches | None = None,
    advice: Sequence[Advice] = (), notes: Sequence[str] = (),
) -> Diagnosis:  # fmt: skip
    """What limits the call, and what to change; `advice` is of the longest kernel."""
    ranked = sorted(kernels, key=lambda k: -k.ns)
    total = max(call.ns, sum(k.ns for k in ranked))
    ideas = list(_of_the_call(ranked, call, launches))
    for kernel in ranked:
        share = kernel.ns / total if total else 1.0 / len(ranked)
        ideas += [(share * won, f"{kernel.title}: {text}") for won, text in _of_a_kernel(kernel)]
    ideas += [
        (ranked[0].ns / total * one.speedup, f"{ranked[0].title}: {_first_sentence(one.text)} (a rule of ncu's)")
        for one in advice
        if one.speedup > 0 and ranked and total
    ]
    best = sorted(dict.fromkeys(ideas), key=lambda idea: -idea[0])[:MOST]
    return Diagnosis(
        limit=_limit(ranked, call, launches), kernels=tuple(ranked), changes=tuple(text for _, text in best),
        notes=tuple(notes),
    )  # fmt: skip


def of_operators(longest: Sequence[KernelProfile], call: ProfiledCall, target: Target = "cpu") -> Diagnosis:
    """Of a call on the CPU, where torch's operators are all that is seen."""
    memory, products = rates(call)
    ideas: list[Idea] = []
    foreign = [k for k in longest if k.origin != OWN]
    if foreign and 5 * sum(k.ns for k in foreign) > call.ns:
        names = ", ".join(k.name for k in foreign[:3])
        ideas.append((0.5, f"fuse what torch does operator by operator ({names}): each writes its result to memory"))
    if max(memory.value, products.value) >= BUSY:
        limit = "memory's bandwidth" if memory.value >= products.value else "the rate of products"
        ideas.append((0.1, "it is near the machine's limit: move fewer bytes, or compute less"))
    elif (special := transcendental_share(call)) >= BUSY:
        limit = f"transcendental functions ({call.special:.3g} evaluations, about {special:.0f}% of the time)"
        ideas.append((0.3, "fewer evaluations: share what is computed twice, exp2 with a folded factor, one division"))
        ideas.append((0.2, "cheaper ones, as exact as the allowance asks: shorter polynomials, wider vectors"))
    else:
        limit = "work beyond the least: extra passes over memory, scalar code, or threads that wait"
        ideas.append((0.4, "one pass over memory, in whole vectors, on all threads"))
        ideas.append((0.2, "parts that stay in a thread's cache; streaming stores for what is not read again"))
    told = f"limited by {limit} ({memory.value:.0f}% of the measured bandwidth"
    told += f", {products.value:.0f}% of the rate of products)" if products.value else ")"
    best = sorted(ideas, key=lambda idea: -idea[0])[:MOST]
    return Diagnosis(limit=told, kernels=tuple(longest), changes=tuple(text for _, text in best))


def _limit(ranked: Sequence[KernelProfile], call: ProfiledCall, launches: Launches | None) -> str:
    if not ranked:
        return "no kernel was seen"
    if launches is not None and launches.ns > call.ns > 0:
        return f"limited by {_WORDS['launches']}: {launches.count} take it {launches.ns / 1e3:.1f} us"
    first = ranked[0]
    share = f", {100 * first.ns / call.ns:.0f}% of the call," if call.ns > 0 and first.ns > 0 else ""
    return f"{first.title}{share} is limited by {_WORDS[first.limit]}"


def _of_the_call(ranked: Sequence[KernelProfile], call: ProfiledCall, launches: Launches | None) -> Iterator[Idea]:
    if launches is not None and launches.count > 1 and call.ns > 0:
        yield (
            min(0.9, max(0.0, 1 - call.ns / launches.ns)),
            f"fewer kernels: {launches.count} are started, {launches.cost_ns / 1e3:.1f} us of the host each",
        )
    others = [k for k in ranked if k.origin != OWN]
    copies = sum(k.ns for k in others if k.origin in ("copy", "torch"))
    if call.ns > 0 and copies > 0.1 * call.ns:
        yield (
            copies / call.ns * 0.7,
            f"fuse what torch's own kernels do between ({100 * copies / call.ns:.0f}% of the time): each reads and "
            "writes memory once more",
        )


def _of_a_kernel(kernel: KernelProfile) -> Iterator[Idea]:
    seen = {m.name: m.value for m in kernel.evidence}
    yield from _by_limit(kernel, seen)
    for stall in kernel.stalls[:2]:
        if stall.name in _WAITS and stall.value >= 20:
            weight = 0.5 if kernel.limit in ("latency", "parallelism") else 0.2
            yield weight * stall.value / 100, f"{stall.value:.0f}% of waiting is {stall.name}: {_WAITS[stall.name]}"
    could, had = seen.get("occupancy that it could have"), seen.get("occupancy that it had")
    if kernel.limit == "latency" and could is not None and could < 50:
        taken = [f"{seen[n]:.0f} {n}" for n in ("registers a thread", "threads a CTA") if n in seen]
        yield 0.25, f"more warps at once: at most {could:.0f}% fit ({', '.join(taken)}); take fewer registers or bytes"
    if could is not None and had is not None and had < 0.6 * could:
        yield 0.2, f"even work: {could:.0f}% of the warps would fit, {had:.0f}% were there; balance CTAs, shorten tails"
    lost = seen.get("passes lost to bank conflicts", 0.0)
    if lost >= 20:
        yield 0.4 * lost / 100, f"{lost:.0f}% of the passes through shared memory are bank conflicts: pad or swizzle"
    used = seen.get(USED, 32.0)
    if 0 < used < 24 and kernel.limit in ("memory", "cache", "latency"):
        yield (
            0.8 * (1 - used / 32),
            f"{used:.0f} of 32 bytes loaded are used: neighbouring lanes on neighbouring addresses",
        )
    waves = seen.get("waves")
    if waves is not None and 1 < waves < 4 and (tail := -(-waves // 1) - waves) > 0.3:
        yield 0.5 * tail / -(-waves // 1), f"{waves:.2f} waves: the last is mostly empty; other tiles, or stay resident"


def _by_limit(kernel: KernelProfile, seen: dict[str, float]) -> Iterator[Idea]:
    match kernel.limit:
        case "memory":
            busy = max(seen.get("DRAM, of its peak", 0), seen.get("least traffic, of the measured bandwidth", 0))
            yield 0.3, f"move fewer bytes (DRAM at {busy:.0f}%): fuse with what writes its inputs or reads its results"
            yield 0.1, "narrower types where the contract allows; keep what is read twice on the chip"
        case "cache":
            yield 0.3, "read each byte once: tiles in registers or shared memory, neighbouring lanes side by side"
        case "shared memory":
            yield 0.4, "another layout in shared memory: swizzled, padded, or values kept in registers"
        case "tensor cores":
            yield 0.1, "near the peak: only less work helps, a cheaper type, or fusion of what stands around it"
        case "arithmetic":
            if seen.get("tensor cores, of their peak") == 0 and "products, of the measured rate" in seen:
                yield 0.6, "products on tensor cores (wgmma)"
            yield 0.3, "fewer instructions an element: vectors, hoisted addresses, cheaper formulas"
        case "parallelism":
            yield 0.5, "more CTAs: split the work further (rows into parts, split-K), so that all multiprocessors work"
        case "spills":
            local = seen.get("local memory a thread", 0)
            told = f" ({local:.0f} bytes a thread)" if local else ""
            yield 0.5, f"no spills{told}: smaller tiles a thread, shorter lives of values, fixed indices into arrays"
        case "unknown" | "latency" | "launches":
            return


def _first_sentence(text: str) -> str:
    return text.split(". ", 1)[0].strip().rstrip(".")[:300]
