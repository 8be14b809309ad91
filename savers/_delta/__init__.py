"""A history as keyframes and deltas: packed states, and the operations that turn one into the next.

This package does not decide when a keyframe is written: `LogWriter` does.

Theory of operation. A state is an ordered table of keys, each with a packed value. A stored record
carries *ops*, which turn the table of the record before it into its own table, and *data*, the
bytes that these ops add. The bytes of a value are never copied when the value grows. A value is a
list of *pieces*: ranges of positions where its bytes were first written. A keyframe carries the
table itself, so that a reader need not replay what precedes it. It does not carry the values: it
names their pieces, and omits the pieces that an earlier keyframe, its *base*, has named already.
Therefore a growing list costs what is added to it, in deltas and in keyframes alike, and reading it
takes a few reads and one join. docs/adr/0010 has the measurements.

The header of a list, map, str or bytes (the number of its elements or bytes) is not part of the
bytes of a value. It is kept as a count, because otherwise each append would change the first bytes
of every list and text.

The package does not know files: callers pass positions, and functions that read them.
"""

from savers._delta.bodies import check_pieces as check_pieces, read_bodies as read_bodies, read_pieces as read_pieces
from savers._delta.operations import (
    APPEND as APPEND,
    DELETE as DELETE,
    DROP as DROP,
    SPLICE as SPLICE,
    SPLICE_COST as SPLICE_COST,
    Draft as Draft,
    GrowingValue as GrowingValue,
    Interpreter as Interpreter,
    Operation as Operation,
    PackedState as PackedState,
    PackedTable as PackedTable,
    Table as Table,
    compare_bytes as compare_bytes,
    compare_values as compare_values,
    compress as compress,
    encode_draft as encode_draft,
    get_data as get_data,
    is_set as is_set,
    read_body as read_body,
    replace as replace,
)
from savers._delta.values import (
    BIN as BIN,
    INLINE_LENGTH as INLINE_LENGTH,
    LIST as LIST,
    MALFORMED as MALFORMED,
    MAX_DEPTH as MAX_DEPTH,
    OPAQUE as OPAQUE,
    STR as STR,
    Mismatch as Mismatch,
    Value as Value,
    compare_pieces as compare_pieces,
    decode_entry as decode_entry,
    encode_entry as encode_entry,
    find_moved_window as find_moved_window,
    has_block as has_block,
    has_canonical_header as has_canonical_header,
    is_inlined as is_inlined,
    kind_in_entry as kind_in_entry,
    pack_header as pack_header,
    parse_header as parse_header,
    split_value as split_value,
)
