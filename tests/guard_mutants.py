"""
Mutants of the guards: edits that break a clause of `leasehold.guard`, each with the tests that must notice.

    python tests/guard_mutants.py                 every mutant, and a table of verdicts
    python tests/guard_mutants.py --only NAME     this one; may be repeated
    python tests/guard_mutants.py --list          the names, and what is wrong with each

`tests/mutants.py` says how they are tried. A name begins with the kind of the guard and the clause.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.mutants import Edit, Mutant, main

# Objects

_O = "guards/objects/"
_S3 = "tests/guards/test_object_faults.py::"
_S3_BATTERY = "tests/guards/test_object_battery.py::TestSeaweedFS::"
_IN_MEMORY = "tests/guards/test_objects.py::"
_MEMORY_BATTERY = "tests/guards/test_object_battery.py::TestMemoryStore::"
_ADMIT = "            mark = self._admit(key, None if before is None else before.mark, writer, verb)\n"

OBJECTS = (
    Mutant(
        "object-g1-sibling",
        "A write that meets another one under the same epoch is not tried again.",
        (
            Edit(
                _O + "guard.py",
                "                failure: Exception = error\n",
                "                raise GuardUnavailable(str(error)) from error\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g1_writes_of_one_epoch_from_two_threads_both_succeed",),
    ),
    Mutant(
        "object-g1-owner",
        "A refusal is made by a pointer of a while ago, and names an owner of a while ago.",
        (
            Edit(
                _O + "guard.py", "            except StaleEpoch:  # by", "            except NotImplementedError:  # by"
            ),
        ),
        (_IN_MEMORY + "test_a_refusal_names_the_present_owner_and_not_the_one_that_was_known",),
    ),
    Mutant(
        "object-g2-replace",
        "A pointer is replaced whatever it has become.",
        (
            Edit(
                _O + "bucket.py", '"create" if seen is None else {**seen}', '"create" if seen is None else "overwrite"'
            ),
        ),
        (
            _MEMORY_BATTERY + "test_g2_no_old_value_lands_on_top",
            _MEMORY_BATTERY + "test_g2_after_a_seal_nothing_changes",
        ),
    ),
    Mutant(
        "object-g2-create",
        "The first pointer of a key is put over one that another owner has made meanwhile.",
        (
            Edit(
                _O + "bucket.py", '"create" if seen is None else {**seen}', '"overwrite" if seen is None else {**seen}'
            ),
        ),
        (_MEMORY_BATTERY + "test_g2_no_old_value_lands_on_top",),
    ),
    Mutant(
        "object-g2-again",
        "A write that meets another change is repeated without comparing the epoch.",
        (
            Edit(
                _O + "guard.py",
                _ADMIT,
                "            last = 0 if before is None else before.mark.counter\n"
                "            mark = Mark(writer.epoch, last + 1, writer.owner, writer.store)\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g2_no_old_value_lands_on_top",),
    ),
    Mutant(
        "object-g2-order",
        "The pointer is replaced before the data that it names is there.",
        (
            Edit(
                _O + "guard.py",
                '            self._bucket.upload(path, content)\n            self.at("uploaded")\n',
                '            self.at("uploaded")\n',
            ),
            Edit(
                _O + "guard.py",
                '            self.at("replaced")\n',
                '            self.at("replaced")\n            self._bucket.upload(path, content)\n',
            ),
        ),
        (_S3_BATTERY + "test_g2_a_write_that_is_killed_leaves_the_old_or_the_new_value",),
    ),
    Mutant(
        "object-g3-read",
        "A read does not seal.",
        (
            Edit(
                _O + "guard.py",
                '                found = self._change(key, writer, "read", _same_data, found)\n',
                "                pass\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g3_read_seals_and_then_reads",),
    ),
    Mutant(
        "object-g3-check",
        "A read does not check that the lease is current.",
        (Edit(_O + "guard.py", "            self._check_current(presented)\n", ""),),
        (_MEMORY_BATTERY + "test_g3_read_checks_that_the_lease_is_current",),
    ),
    Mutant(
        "object-g3-peek",
        "A reader without a lease disturbs the mark.",
        (
            Edit(
                _O + "guard.py",
                "        key = self.canonical(key)\n        return self._data(key, self._fetch(key))\n",
                "        key = self.canonical(key)\n        self._change(key, Writer(1, '', ''), 'seal', _same_data, None)\n        return self._data(key, self._fetch(key))\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g3_peek_needs_no_lease_and_never_seals",),
    ),
    Mutant(
        "object-g4-delete",
        "A deletion removes the pointer, and the mark with it.",
        (
            Edit(
                _O + "guard.py",
                'lambda _: None, self._start(key, writer, "delete")[0])\n',
                'lambda _: None, self._start(key, writer, "delete")[0])\n            self._bucket.remove([key])\n',
            ),
        ),
        (_MEMORY_BATTERY + "test_g4_the_mark_survives_the_deletion_of_the_data",),
    ),
    Mutant(
        "object-g4-equal",
        "A pointer stays as it is under the same epoch, and so does its ETag.",
        (
            Edit(
                _O + "guard.py",
                "            after = follow(before, mark, data(before), nonce)\n",
                "            after = follow(before, mark, data(before), nonce)\n"
                "            if before is not None and before.mark.epoch == mark.epoch:\n"
                "                after = Pointer(before.mark, data(before), before.nonces)\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g4_every_write_and_every_seal_changes_the_mark",),
    ),
    Mutant(
        "object-g5-foreign",
        "An object that is not a pointer is taken for an old one, and replaced.",
        (
            Edit(
                _O + "bucket.py",
                "        return Found(Pointer.decode(content, key, resource), _version(meta))\n",
                "        try:\n            return Found(Pointer.decode(content, key, resource), _version(meta))\n"
                "        except GuardUnavailable:\n            from ...core.marks import Mark\n\n"
                "            return Found(Pointer(Mark(1, 1, '', ''), None, ()), _version(meta))\n",
            ),
        ),
        (_MEMORY_BATTERY + "test_g5_an_unreadable_mark_refuses_every_write",),
    ),
    Mutant(
        "object-g5-path",
        "A pointer may name any path, which is then read, and removed.",
        (Edit(_O + "pointer.py", "    return epoch is not None and epoch <= mark.epoch\n", "    return True\n"),),
        (_IN_MEMORY + "test_an_object_that_is_not_a_pointer_is_never_replaced",),
    ),
    Mutant(
        "object-g5-vanished",
        "A pointer that was deleted past the guard is made anew by a writer that knew it.",
        (
            Edit(
                _O + "guard.py",
                "            if now is None:\n                self._forget(key)\n",
                "            if now is None and conflicts < 0:\n                self._forget(key)\n",
            ),
        ),
        (_IN_MEMORY + "test_a_pointer_that_was_deleted_past_the_guard_is_noticed_by_who_knew_it",),
    ),
    Mutant(
        "object-g6-nothing",
        "The proof shows nothing.",
        (Edit(_O + "proof.py", "        canary.prove()\n", "        pass\n"),),
        (_S3_BATTERY + "test_g6_prove_fails_on_a_resource_that_ignores_the_condition",),
    ),
    Mutant(
        "object-g6-stale",
        "The proof does not try a condition that has passed.",
        (
            Edit(
                _O + "proof.py",
                "        if self._replaces(third, created) is not None:\n",
                "        if third is None:\n",
            ),
        ),
        (_S3 + "test_each_part_of_the_proof_bites",),
    ),
    Mutant(
        "object-g6-at-once",
        "The proof does not send two changes at once.",
        (Edit(_O + "proof.py", "        if self._at_once(sealed) != 1:\n", "        if sealed is None:\n"),),
        (_S3 + "test_each_part_of_the_proof_bites",),
    ),
    Mutant(
        "object-g8-nonce",
        "A write whose reply was lost is not looked for, and is made again.",
        (
            Edit(
                _O + "guard.py",
                "            if now is not None and now.pointer.shows(nonce, after.mark.counter):\n",
                "            if nonce == '':\n",
            ),
        ),
        (_S3_BATTERY + "test_g8_a_write_whose_reply_was_lost_is_recognised",),
    ),
    Mutant(
        "object-g8-doubt",
        "A write that cannot be found among the last changes is taken for one that did not happen.",
        (
            Edit(
                _O + "pointer.py",
                "        return False if 0 <= self.mark.counter - counter < len(self.nonces) else None\n",
                "        return False\n",
            ),
        ),
        (_S3 + "test_a_lost_reply_is_recognised_by_the_last_sixteen_changes",),
    ),
    Mutant(
        "object-g8-client",
        "The client repeats a conditional request by itself, and reports its own write as a refusal.",
        (Edit(_O + "bucket.py", '"max_retries": 0}', '"max_retries": 3}'),),
        (_S3 + "test_a_lost_reply_is_recognised_by_the_last_sixteen_changes",),
    ),
    Mutant(
        "object-g8-condition",
        "A request is sent under the state that the key has then, and not under the one that was compared.",
        (
            Edit(
                _O + "guard.py",
                "after.encode(), None if found is None else found.version)\n",
                "after.encode(), getattr(self._fetch(key), 'version', None))\n",
            ),
        ),
        (_S3 + "test_a_request_that_is_sent_again_has_the_condition_of_the_first",),
    ),
    Mutant(
        "object-g8-unreadable",
        "A write whose reply was lost is called unavailable if the pointer cannot be read back.",
        (
            Edit(
                _O + "guard.py",
                "        except GuardUnavailable as error:\n            if pending is None:\n                raise\n            raise self._doubt(",
                "        except GuardUnavailable as error:\n            if True:\n                raise\n            raise self._doubt(",
            ),
        ),
        (_S3 + "test_a_lost_reply_without_a_pointer_to_read_back_is_in_doubt",),
    ),
    Mutant(
        "object-g9-strict",
        "Another store takes a key over although the guard is strict.",
        (
            Edit(
                _O + "guard.py",
                _ADMIT,
                _ADMIT.replace(
                    "self._admit(key, None if before is None else before.mark, writer, verb)",
                    "admit(None if before is None else before.mark, writer, resource=self.resource(key))",
                ),
            ),
            Edit(_O + "guard.py", '"strict_store": self.strict_store}', '"strict_store": False}'),
        ),
        (_MEMORY_BATTERY + "test_g9_a_strict_guard_refuses_every_other_store",),
    ),
    Mutant(
        "object-collect-named",
        "Data is collected that the pointer names.",
        (Edit(_O + "garbage.py", " and path != found.pointer.data\n", "\n"),),
        (_IN_MEMORY + "test_collect_removes_what_is_below_the_epoch_and_not_named",),
    ),
    Mutant(
        "object-collect-own",
        "Data is collected that a write under the present epoch is about to name.",
        (Edit(_O + "garbage.py", "epoch < found.pointer.mark.epoch", "epoch <= found.pointer.mark.epoch"),),
        (_IN_MEMORY + "test_collect_removes_what_is_below_the_epoch_and_not_named",),
    ),
    Mutant(
        "object-collect-once",
        "The pointer is not read again before data is removed.",
        (Edit(_O + "garbage.py", "    second = fetch() if old else None\n", "    second = first\n"),),
        (_S3 + "test_collect_looks_at_the_pointer_again_before_it_removes",),
    ),
    Mutant(
        "object-grace",
        "Replaced data is removed at once, while readers need it.",
        (Edit(_O + "garbage.py", "        self._grace = grace_us\n", "        self._grace = -1\n"),),
        (_IN_MEMORY + "test_replaced_data_is_removed_by_a_later_write_after_the_grace_time",),
    ),
    Mutant(
        "object-reader",
        "A reader that meets collected data does not read the pointer again.",
        (
            Edit(
                _O + "guard.py",
                "            if found is not None and found.pointer == earlier.pointer:\n",
                "            if found is not None:\n",
            ),
        ),
        (_S3 + "test_a_reader_that_meets_collected_data_reads_the_pointer_again",),
    ),
    Mutant(
        "object-refused-data",
        "A refused write leaves its data in the bucket.",
        (Edit(_O + "guard.py", "                self._replaced.discard(path)\n", ""),),
        (_IN_MEMORY + "test_a_refused_write_leaves_no_data",),
    ),
)

# SQL

_SQL = "guards/sql/"
_SQL_PG = "tests/guards/test_sql_postgres.py::TestOwnTransaction::"
_SQL_LITE = "tests/guards/test_sql_sqlite.py::TestOwnTransaction::"
_SQL_TX = "tests/guards/test_sql_transactions.py::"
_BESIDE = _SQL_TX + "test_a_seal_gets_through_beside_a_paused_owner_whose_commit_is_refused"

SQL = (
    Mutant(
        "sql-g1-commit",
        "PostgreSQL: COMMIT admits a lower epoch.",
        (Edit(_SQL + "postgres.sql", "WHERE m.epoch <= excluded.epoch AND m.epoch > 0", "WHERE m.epoch > 0"),),
        (_BESIDE,),
    ),
    Mutant(
        "sql-g1-sqlite",
        "SQLite: the conditional write admits a lower epoch.",
        (Edit(_SQL + "sqlite.py", '"AND m.epoch <= excluded.epoch AND (m.store', '"AND (m.store'),),
        (_SQL_LITE + "test_g1_a_late_write_is_refused_and_names_both_epochs_and_the_owner",),
    ),
    Mutant(
        "sql-g2-early-lock",
        "PostgreSQL: the fence locks the mark before COMMIT, so a paused owner blocks its successor.",
        (
            Edit(
                _SQL + "postgres.sql",
                "    INSERT INTO leasehold_guard.fences AS f (fence) VALUES (p)\n",
                "    PERFORM 1 FROM leasehold_guard.marks WHERE key = p::json->'keys'->>0 FOR UPDATE;\n"
                "    INSERT INTO leasehold_guard.fences AS f (fence) VALUES (p)\n",
            ),
        ),
        (_BESIDE,),
    ),
    Mutant(
        "sql-g2-other-words",
        "PostgreSQL: a COMMIT in other words is put off for ever.",
        (
            Edit(
                _SQL + "postgres.sql",
                "IF NEW.put_off_at IS DISTINCT FROM statement_timestamp() THEN",
                "IF NEW.put_off_at IS NULL THEN NEW.put_off_at := now(); RETURN NULL; END IF; IF false THEN",
            ),
        ),
        (_SQL_TX + "test_commit_in_other_words_is_fenced_too",),
    ),
    Mutant(
        "sql-g2-replica",
        "PostgreSQL: the trigger is off in sessions with the role replica.",
        (Edit(_SQL + "postgres.sql", "fences ENABLE ALWAYS TRIGGER", "fences ENABLE TRIGGER"),),
        (_SQL_TX + "test_a_replica_session_is_fenced_too",),
    ),
    Mutant(
        "sql-g2-savepoint",
        "PostgreSQL: a fence in a savepoint is taken.",
        (Edit(_SQL + "postgres.sql", "IF v_sub AND NOT", "IF false AND NOT"),),
        (_SQL_TX + "test_a_savepoint_is_refused_unless_the_caller_knows",),
    ),
    Mutant(
        "sql-g2-autocommit",
        "A fence is taken where each statement commits by itself.",
        (Edit(_SQL + "guard.py", "        found.require_transaction()\n", ""),),
        (_SQL_TX + "test_autocommit_is_refused",),
    ),
    Mutant(
        "sql-g2-order",
        "Keys are fenced in the order of the caller.",
        (
            Edit(
                _SQL + "guard.py",
                "tuple(sorted({self.canonical(key) for key in keys}))",
                "tuple(self.canonical(key) for key in keys)",
            ),
        ),
        (_SQL_TX + "test_several_keys_are_fenced_in_sorted_order",),
    ),
    Mutant(
        "sql-g3-seal",
        "PostgreSQL: a seal reads the mark and does not raise it.",
        (
            Edit(
                _SQL + "postgres.sql",
                "row_to_json(leasehold_guard.admit(v_key, p::json, 'seal'))",
                "json_build_object('key', v_key, 'epoch', p::json->'epoch', 'counter', 1, 'owner', p::json->'owner', 'store', p::json->'store')",
            ),
        ),
        (_SQL_PG + "test_g3_a_seal_is_durable_and_seen_by_others",),
    ),
    Mutant(
        "sql-g4-counter",
        "PostgreSQL: a write under the same epoch leaves the mark as it is.",
        (Edit(_SQL + "postgres.sql", "counter = m.counter + 1", "counter = m.counter"),),
        (_SQL_PG + "test_g4_every_write_and_every_seal_changes_the_mark",),
    ),
    Mutant(
        "sql-g4-counter-sqlite",
        "SQLite: a write under the same epoch leaves the mark as it is.",
        (Edit(_SQL + "sqlite.py", "counter = m.counter + 1", "counter = m.counter"),),
        (_SQL_LITE + "test_g4_every_write_and_every_seal_changes_the_mark",),
    ),
    Mutant(
        "sql-g5-unreadable",
        "PostgreSQL: a mark that is not one is overwritten.",
        (Edit(_SQL + "postgres.sql", "excluded.epoch AND m.epoch > 0 AND m.counter > 0", "excluded.epoch"),),
        (_SQL_PG + "test_g5_an_unreadable_mark_refuses_every_write",),
    ),
    Mutant(
        "sql-g6-prove",
        "prove() does not look at what became of the stale transaction.",
        (
            Edit(
                _SQL + "guard.py",
                "if not refused or known is None or known.mark.epoch != new.epoch:",
                "if known is None:",
            ),
        ),
        (
            _SQL_PG + "test_g6_prove_fails_on_a_resource_that_ignores_the_condition",
            _SQL_LITE + "test_g6_prove_fails_on_a_resource_that_ignores_the_condition",
        ),
    ),
    Mutant(
        "sql-g8-forgets",
        "A mark does not remember its last writes.",
        (Edit(_SQL + "guard.py", "if known is not None and nonce in known.recent:", "if False:"),),
        (
            _SQL_TX + "test_a_callers_commit_whose_reply_was_lost_can_be_asked_about",
            _SQL_PG + "test_g8_a_write_whose_reply_was_lost_is_recognised",
        ),
    ),
    Mutant(
        "sql-g8-failed",
        "The COMMIT of a failed transaction is taken for a success.",
        (Edit(_SQL + "guard.py", "            if has_failed(handle):\n", "            if False:\n"),),
        (_SQL_TX + "test_a_transaction_that_failed_is_not_committed_silently",),
    ),
    Mutant(
        "sql-g1-snapshot",
        "At REPEATABLE READ a takeover is taken for a faster sibling.",
        (Edit(_SQL + "guard.py", "    if guard is None:\n        return None\n    try:", "    return None\n    try:"),),
        (_BESIDE,),
    ),
    Mutant(
        "sql-g9-strict",
        "PostgreSQL: a strict guard's mark passes to another store.",
        (Edit(_SQL + "postgres.sql", "      AND (m.store = excluded.store OR NOT (p->>'strict')::boolean)\n", ""),),
        (_SQL_PG + "test_g9_a_strict_guard_refuses_every_other_store",),
    ),
    Mutant(
        "sql-g9-log",
        "SQLite: a key that passes to another store is not logged.",
        (Edit(_SQL + "sqlite.py", "CASE WHEN m.store <> excluded.store THEN", "CASE WHEN false THEN"),),
        (_SQL_LITE + "test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged",),
    ),
)

MUTANTS = (
    *SQL,
    *OBJECTS,
)

if __name__ == "__main__":
    sys.exit(main(table=MUTANTS))
