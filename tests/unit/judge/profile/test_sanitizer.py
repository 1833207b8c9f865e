"""compute-sanitizer's reports: what counts, whose it is, and what is only said."""

from __future__ import annotations

from tilewright.judge.profile.sanitizer import failure, remarks, reports, why_not

MEMCHECK = """========= COMPUTE-SANITIZER
the candidate prints this
========= Invalid __global__ read of size 4 bytes
=========     at shifted(const float *, float *, int)+0x90 in model.cu:7
=========     by thread (63,0,0) in block (3,0,0)
=========     Access at 0x7f2b3dc00400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b3dc00000 of size 1,024 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at shifted(const float *, float *, int)+0x90 in model.cu:7
=========     by thread (63,0,0) in block (3,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
OLD_MEMCHECK = """========= COMPUTE-SANITIZER
========= Misaligned Shared or Local Address
=========     at 0x1e0 in /tmp/k.cu:12:tiled(float *)
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at summed(const float *, float *)+0x150
=========     and Read access at summed(const float *, float *)+0x1c0 [248 hazards]
=========
========= Warning: Race reported between Read access at summed(const float *, float *)+0x2a0
=========     and Write access at summed(const float *, float *)+0x2d0 [8 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
LIBRARY = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>(float)+0x50
=========     and Read access at void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>(float)+0x90 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\nInvalid, says the candidate\n========= ERROR SUMMARY: 0 errors\n"


def test_an_access_out_of_bounds_is_the_candidates_fault() -> None:
    found = reports(MEMCHECK)
    assert [r.kernel for r in found] == ["shifted(const float *, float *, int)"] * 2
    refused = failure("memcheck", found)
    assert refused is not None
    assert (refused.stage, refused.reason) == ("check", "sanitizer")
    said = "memcheck: Invalid __global__ read of size 4 bytes in shifted(const float *, float *, int) (and 1 more)"
    assert refused.summary == said
    assert "nearest allocation at 0x7f2b3dc00000 of size 1,024 bytes" in refused.excerpt
    assert "ERROR SUMMARY" not in refused.excerpt
    assert remarks("memcheck", found) == ()


def test_the_form_of_older_versions_is_read_too() -> None:
    (found,) = reports(OLD_MEMCHECK)
    assert (found.what, found.kernel) == ("Misaligned Shared or Local Address", "tiled(float *)")


def test_a_race_is_an_error_and_a_warning_only_a_remark() -> None:
    found = reports(RACECHECK)
    assert [r.fatal for r in found] == [True, False]
    refused = failure("racecheck", found)
    assert refused is not None
    assert refused.summary == ("racecheck: Race reported between Write access in summed(const float *, float *)")
    assert remarks("racecheck", found) == (
        "racecheck: Race reported between Read access in summed(const float *, float *)",
    )
    assert failure("racecheck", found[1:]) is None


def test_an_error_in_a_librarys_kernel_is_a_remark() -> None:
    found = reports(LIBRARY)
    assert failure("racecheck", found) is None
    (said,) = remarks("racecheck", found)
    assert said.endswith("(cuDNN's)")


def test_what_the_candidate_prints_is_no_report() -> None:
    assert reports(CLEAN) == ()


def test_why_a_tool_did_not_get_to_the_end() -> None:
    unsupported = (
        "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the release notes\n"
    )
    assert why_not(unsupported) == "Error: Device not supported. Please refer to the release notes"
    assert why_not("Traceback\nRuntimeError: no such thing\n") == "RuntimeError: no such thing"
    assert why_not("") == "it printed nothing"
