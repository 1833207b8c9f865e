"""Pages of Nsight Compute's reports: launches with their metrics in base units, rules, hot instructions."""

from __future__ import annotations

from tilewright.stages.profiling.counters import Advice, advice, counted, hot_spots

RAW = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","x__rate.sum","smsp__clock.avg"
"","","","","","us","Mbyte","Gbyte/second","Ghz"
"0","12","void rows<float, 4>(const float *, float *)","(256, 1, 1)","(40, 1, 1)","12.5","1,024.5","3.5","1.98"
"1","12","second","(32, 1, 1)","(1, 1, 1)","2","n/a","0","1"
"2","12","cut
"""  # noqa: E501


def test_launches_are_told_apart_and_units_are_kept() -> None:
    rows, second = counted(RAW)
    assert rows.name == "void rows<float, 4>(const float *, float *)"
    assert {(m.name, m.value, m.unit) for m in rows.metrics.values()} == {
        ("gpu__time_duration.sum", 12500.0, "ns"), ("dram__bytes_read.sum", 1024.5e6, "byte"),
        ("x__rate.sum", 3.5e9, "byte/s"), ("smsp__clock.avg", 1.98e9, "Hz"),
    }  # fmt: skip
    assert second.get("dram__bytes_read.sum", "gpu__time_duration.sum") == 2000.0
    assert second.get("dram__bytes_read.sum") is None


def test_what_is_no_table_holds_nothing() -> None:
    for text in ("", "==ERROR== oh", "a,b\n1,2", '"ID","Kernel Name"', '"unfinished'):
        assert (counted(text), advice(text), hot_spots(text)) == ((), (), ())


def test_rules_are_told_with_what_they_reckon_with() -> None:
    details = (
        '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
        '"Rule Description","Estimated Speedup Type","Estimated Speedup"\n'
        '"0","rows","Occupancy","Theoretical","%","50","","","","",""\n'
        '"0","rows","Occupancy","","","","TheoreticalOccupancy","OPT","Registers limit it, to half.","local","40.5"\n'
        '"0","rows","Launch","","","","Hint","INF","All is well.","",""\n'
    )
    assert advice(details) == (Advice(0, "TheoreticalOccupancy", "Registers limit it, to half.", 0.405),)
