"""Machine code by classes of instructions, of a listing as nvdisasm prints it."""

from __future__ import annotations

from fakes.realisers import H200
from tilewright.judge.profile.code import REST, SourceCode, mixes
from tilewright.judge.profile.limits import by_code

# nvdisasm 13.0 -c, of a product of ours for sm_90a; lines of it.
LISTING = """
	.section	.text.kernel_product,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=168"
kernel_product:
.text.kernel_product:
        /*01d0*/                   NOP ;
        /*0ce0*/                   @UP0 UIADD3 UR7, UR7, 0x1, URZ ;
        /*0d37*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0d40*/               @P0 BRA `(.L_x_8) ;
        /*0db0*/                   IMAD.U32 R6, RZ, RZ, UR22 ;
        /*0e40*/                   MUFU.RCP R2, R2 ;
        /*0e50*/              @!P1 LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0e60*/                   STL [R1], R6 ;
        /*0e70*/                   FFMA R0, R1, R2, R3 ;
        /*0e80*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0e90*/                   SHFL.BFLY PT, R3, R2, 0x10, 0x1f ;
        /*0ea0*/                   LDS.128 R8, [R5] ;
	.section	.text.other,"ax",@progbits
        /*0000*/                   EXIT ;
"""


def test_instructions_are_counted_by_kernel_and_class() -> None:
    found = mixes(LISTING)
    counts = {m.name: m.value for m in found["kernel_product"]}
    assert counts == {
        REST: 2, "branches": 2, "tensor cores": 1, "special functions": 1, "global memory": 1, "local memory": 1,
        "floating point": 1, "synchronisation": 1, "shuffles": 1, "shared memory": 1,
    }  # fmt: skip
    assert [m.name for m in found["other"]] == ["branches"]
    assert mixes("nothing that was disassembled") == {}


def test_code_says_what_it_takes_and_whether_it_spills() -> None:
    mix = mixes(LISTING)["other"]
    code = SourceCode(name="rows", registers=168, local_bytes=0, shared_bytes=1024, threads=256, mix=mix)
    told = by_code(code, H200)
    assert (told.limit, told.source, told.ns) == ("unknown", "code", 0.0)
    assert {m.name: m.text for m in told.evidence} == {
        "registers a thread": "168", "local memory a thread": "0 B", "static shared memory a CTA": "1.02 kB",
        "occupancy that it could have": "12.5%", "instructions: branches": "100%",
    }  # fmt: skip
    spilling = SourceCode(name="rows", registers=255, local_bytes=64, shared_bytes=0)
    assert by_code(spilling, H200).limit == "spills"
