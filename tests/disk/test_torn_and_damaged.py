"""A log whose end is missing, and a log whose bytes are wrong."""

import logging

import pytest

from graphkit import CheckpointCorruptionError, CheckpointerError, CheckpointFormatError
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.logs import CHECKPOINT, append_record, flip, locate_log, read_records, with_format


def ids(history):
    return [checkpoint.id for checkpoint in history]


@pytest.fixture
def three(opener, config):
    """Three checkpoints, the last one long enough to span several sectors."""
    saver = opener()
    for n, text in enumerate(["a", "b", "c" * 500]):
        saver.put(config, make_checkpoint(n, text=text))
    saver.close()
    return locate_log(saver.base_directory)


@pytest.mark.requirement("promise 2", "L8")
def test_a_last_record_cut_anywhere_is_not_there_for_readers_and_set_aside_by_the_next_writer(
    three, opener, config, caplog, sweep
):
    whole = three.read_bytes()
    last = read_records(three)[-1]
    expected = ids(opener().list(config))
    for cut in sweep.some(range(last.offset, last.end), 100):
        three.write_bytes(whole[:cut])
        reader = opener()
        assert ids(reader.list(config)) == expected[1:]
        assert list_numbers(reader, config) == [1, 0]
        assert reader.get(config).state["n"] == 1
        assert reader.summary(config).checkpoints == 2
        assert reader.summary(config).latest == reader.history(config)[0]
        assert three.read_bytes() == whole[:cut], "readers never repair"
        writer = opener()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "graphkit"):
            writer.put(config, make_checkpoint(9))
        assert ids(opener().list(config))[1:] == expected[1:]
        torn = list(three.parent.glob("torn-*.bin"))
        if cut == last.offset:
            assert not torn
            assert not caplog.records
        else:
            assert [path.read_bytes() for path in torn] == [whole[last.offset : cut]]
            assert torn[0].name == f"torn-1-{last.offset}.bin"
            assert "set aside" in caplog.text
            torn[0].unlink()
        reader.close()
        writer.close()


def test_a_log_whose_creation_never_finished_is_created_again(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    saver.close()
    path = locate_log(saver.base_directory)
    whole = path.read_bytes()
    beginning = read_records(path)[0].end
    for left in (b"", whole[:1], whole[:63], whole[:64], whole[: beginning - 1], bytes(beginning), bytes(4096)):
        path.write_bytes(left)
        assert opener().list(config) == []
        opener().put(config, make_checkpoint(5))
        assert list_numbers(opener(), config) == [5]


@pytest.mark.requirement("promise 3")
def test_damage_in_the_middle_names_the_file_the_place_and_the_reason(three, opener, config):
    middle = read_records(three)[2]
    whole = flip(three.read_bytes(), middle.offset + 40)
    three.write_bytes(whole)
    with pytest.raises(CheckpointCorruptionError) as caught:
        opener().list(config)
    assert caught.value.path == str(three)
    assert caught.value.offset == middle.offset
    assert "checksum" in caught.value.reason
    assert three.read_bytes() == whole, "nothing is repaired by reading"
    assert not list(three.parent.glob("torn-*"))


def test_a_log_within_a_message_is_not_mistaken_for_records(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    inner = locate_log(saver.base_directory).read_bytes()
    saver.put(config, make_checkpoint(1, attachment=inner * 3))
    path = locate_log(saver.base_directory)
    path.write_bytes(path.read_bytes()[:-7])
    assert list_numbers(opener(), config) == [0]


def test_a_newer_major_version_is_refused_and_left_alone(three, opener, config):
    whole = with_format(three.read_bytes(), 3)
    three.write_bytes(whole)
    for use in (
        lambda saver: saver.get(config),
        lambda saver: saver.put(config, saver.get(config.replace(thread_id="x"))),
    ):
        with pytest.raises(CheckpointFormatError, match="format 3"):
            use(opener())
    assert three.read_bytes() == whole


def test_an_unknown_record_is_refused_unless_it_may_be_skipped(three, opener, config):
    append_record(three, 0x85, b"\xc0")
    assert len(opener().list(config)) == 3
    opener().put(config, make_checkpoint(3))
    assert opener().get(config).state["n"] == 3
    append_record(three, 9, b"\xc0")
    for read in (
        lambda saver: saver.get(config),
        lambda saver: saver.list(config),
        lambda saver: saver.put(config, make_checkpoint(4)),
    ):
        with pytest.raises(CheckpointFormatError, match="newer"):
            read(opener())


def test_unknown_flags_are_refused(three, opener, config):
    append_record(three, CHECKPOINT, b"\x90", flags=0x40)
    with pytest.raises(CheckpointFormatError):
        opener().list(config)


def test_a_file_that_is_no_log_and_a_store_of_a_newer_version_are_refused(opener, config, tmp_path):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    locate_log(saver.base_directory).write_text("x" * 200)
    with pytest.raises(CheckpointFormatError):
        opener().list(config)
    (tmp_path / "store" / "graphkit.store").write_text('{"format": 3}')
    with pytest.raises(CheckpointFormatError, match="format 3"):
        opener()


def test_a_log_in_another_threads_directory_is_refused(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    saver.put(config.replace(thread_id="u"), make_checkpoint(1))
    locate_log(saver.base_directory, "u").write_bytes(locate_log(saver.base_directory).read_bytes())
    with pytest.raises(CheckpointFormatError, match="another thread"):
        opener().get(config.replace(thread_id="u"))


def test_a_summary_reports_damage_wherever_the_history_does(three, opener, config):
    whole = three.read_bytes()
    refused = 0
    for place in range(len(whole)):
        three.write_bytes(flip(whole, place, 0x10))
        reader = opener()
        try:
            infos = reader.history(config)
        except CheckpointerError as error:
            refused += 1
            with pytest.raises(type(error)):
                reader.summary(config)
        else:
            found = reader.summary(config)
            assert (found.latest, found.checkpoints) == (infos[0], len(infos))
        reader.close()
    assert refused > len(whole) / 2
