"""Checks memory snapshots by the rules that PyTorch's viewer relies on. Fails on the first that is broken.

The history is undone from the state at its end, as the viewer does; then it must be gone entirely but for what
was there before it.
"""

import pickle
import pickletools
import sys

READ_BY_THE_VIEWER = set(
    """PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS
    SETITEM SETITEMS BININT BININT1 BININT2 LONG1 BINFLOAT NEWTRUE NEWFALSE NONE SHORT_BINUNICODE BINUNICODE MEMOIZE
    BINPUT LONG_BINPUT BINGET LONG_BINGET""".split()
)


def check(path):
    with open(path, "rb") as file:
        content = file.read()
    assert content[:2] == b"\x80\x04", "protocol 4"
    if len(content) < 1 << 20:
        used = {opcode.name for opcode, _, _ in pickletools.genops(content)}
        assert used <= READ_BY_THE_VIEWER, used - READ_BY_THE_VIEWER
    snapshot = pickle.loads(content)
    (history,) = snapshot["device_traces"]
    segments = {}
    live = {}
    last_end = 0
    for segment in snapshot["segments"]:
        assert segment["segment_pool_id"] == (0, 0) and segment["device"] == 0
        begin, end = segment["address"], segment["address"] + segment["total_size"]
        assert begin >= last_end, "segments overlap, or are out of order"
        last_end = end
        segments[begin] = end
        at = begin
        active = 0
        for block in segment["blocks"]:
            assert block["address"] == at and block["size"] > 0, "blocks do not tile the segment"
            at += block["size"]
            if block["state"] == "active_allocated":
                assert block["requested_size"] <= block["size"]
                live[block["address"]] = block["requested_size"]
                active += block["size"]
            else:
                assert block["state"] == "inactive" and block["requested_size"] == 0
        assert at == end, "blocks do not tile the segment"
        assert segment["allocated_size"] == segment["active_size"] == active
    pending = {}
    for entry in reversed(history):
        action, size = entry["action"], entry["size"]
        if action == "oom":
            assert "device_free" in entry
            continue
        assert entry["pool_id"] == entry["segment_pool_id"] == (0, 0), "both pool keys"
        address = entry["addr"]
        if action == "alloc":
            assert live.pop(address) == size, "an allocation that is not live at the end"
        elif action == "free_completed":
            assert address not in live
            pending[address] = size
        elif action == "free_requested":
            assert pending.pop(address) == size
            live[address] = size
        elif action == "segment_alloc":
            assert segments.pop(address) == address + size
        elif action == "segment_free":
            assert address not in segments
            segments[address] = address + size
        else:
            assert action in ("segment_map", "segment_unmap"), action
    assert not pending, "frees that never complete"


for name in sys.argv[1:]:
    try:
        check(name)
    except Exception as error:
        raise SystemExit(f"{name}: {type(error).__name__}: {error}")
