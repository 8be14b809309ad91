"""The one parser of records, over bytes in memory."""

import pytest

from graphkit.errors import CheckpointCorruptionError
from savers._log import records as records_module
from savers._log.frame import CHECKPOINT, HEADER_SIZE, META, pack_frame
from savers._log.records import BackwardReader, Records
from savers.log import MemoryLogBytes

FID = 77


def make_data(count=40, fid=FID, lengths=(0, 30, 700)):
    """Return the bytes of a header and of a number of records."""
    data = bytearray(bytes(HEADER_SIZE))
    for seq in range(count):
        payload = bytes([65 + seq % 26]) * lengths[seq % len(lengths)]
        data += pack_frame(len(data), fid, seq, CHECKPOINT if seq else META, payload, back=seq, key=seq)
    return data


def records_of(data, fid=FID):
    medium = MemoryLogBytes(data=bytearray(data))
    medium.open()
    return Records(medium, fid)


def scan(data, start=HEADER_SIZE, seq=0):
    return [*records_of(data).scan(start, len(data), seq)]


@pytest.fixture(params=[None, 64, 200, 1 << 12])
def window(request, monkeypatch):
    """How many bytes a scan reads at once."""
    if request.param is not None:
        monkeypatch.setattr(records_module, "FIRST_WINDOW", request.param)
        monkeypatch.setattr(records_module, "WINDOW", 2 * request.param)
        monkeypatch.setattr(records_module, "_SEARCH_SIZE", request.param)
        monkeypatch.setattr(records_module, "_PROBE", request.param)


@pytest.mark.usefixtures("window")
def test_every_way_to_read_finds_the_same_records():
    data = make_data()
    end = len(data)
    records = records_of(data)
    frames = scan(data)

    for frame in frames:
        assert records.read(frame.offset, end) == frame

    start = frames[11].offset
    ahead = bytes(data[start : start + 90])
    assert [*records.scan(start, end, 11, ahead)] == frames[11:]
    assert [*BackwardReader(records, end)] == frames[::-1]
    back = BackwardReader(records_of(data + bytes(5000)), end + 5000)
    back.skip_zeros()
    assert [*back] == frames[::-1]
    assert [*records.search(HEADER_SIZE, end)] == frames
    within = frames[5].offset + 1
    assert [*records.search(within, frames[9].end)] == frames[6:10]
    assert records.read_run(frames[7].offset, frames[20].end) == frames[7:21]


@pytest.mark.usefixtures("window")
def test_a_flipped_bit_is_damage_and_what_is_before_it_is_yielded():
    data = make_data(12)
    frames = scan(data)
    victim = frames[6]

    for offset in range(victim.offset, victim.end, 5):
        bad = bytearray(data)
        bad[offset] ^= 4
        found = []
        with pytest.raises(CheckpointCorruptionError) as refused:
            found.extend(records_of(bad).scan(HEADER_SIZE, len(bad), 0))
        assert refused.value.offset == victim.offset
        assert found == frames[:6]

    for reader in (records_of(bad).read, records_of(bad).read_run):
        with pytest.raises(CheckpointCorruptionError):
            reader(victim.offset, victim.end)

    assert [*records_of(bad).search(HEADER_SIZE, len(bad))] == [*frames[:6], *frames[7:]]
    assert [*BackwardReader(records_of(bad), len(bad))] == frames[:6:-1]


FOREIGN = {
    "another log": {"fid": FID + 1},
    "another place": {"offset": 1 << 20},
    "a number too high": {"seq": 7},
    "a number too low": {"seq": 5},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_whole_record_that_does_not_belong_there_is_damage(kind):
    data = make_data(12)
    victim = scan(data)[6]
    fields = {"offset": victim.offset, "fid": FID, "seq": victim.seq, "type": CHECKPOINT, "payload": victim.payload}
    bad = data[: victim.offset] + pack_frame(**{**fields, **FOREIGN[kind]}) + data[victim.end :]
    with pytest.raises(CheckpointCorruptionError):
        scan(bad)
