from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.signature import OpSignature
from rooflight.sources.capture.record.tape import Tape

ids = st.lists(st.integers(0, 5), max_size=3)
rows = st.lists(st.tuples(st.sampled_from("abc"), ids, ids, st.booleans()), min_size=1, max_size=8)


@given(rows, st.data())
def test_a_record_that_sinks_takes_all_that_is_its_own_along(rows, data):
    tape = Tape()
    for number in range(6):
        tape.new_storage(number, 8, None)
    for number, (name, reads, writes, known) in enumerate(rows):
        starts = [number] * len(reads + writes) if known else ()
        tape.append(OpSignature(name=name, inputs=(), outputs=()), 0, reads, writes, starts)
        if number < len(rows) - 1:  # a composite has the times of its parts
            tape.add_time(number, 10 * number, 11 * number + 1)
    place = data.draw(st.integers(0, len(rows) - 1))
    tape.adopt(range(place, len(rows) - 2), max(place, len(rows) - 2))
    before = list(tape.session({}).records)
    assert tape.sink(place) == place
    after = list(tape.session({}).records)

    def moved(record):
        return replace(record, parent=record.parent + 1) if record.parent is not None else record

    own = before.pop()
    expected = [*before[:place], own, *map(moved, before[place:])]
    assert list(map(str, after)) == list(map(str, expected))  # NaN is no equal of NaN
