"""
Mutants of the guards: edits that break a clause of `leasehold.guard`, each with the tests that must notice.

    python tests/guard_mutants.py                 every mutant, and a table of verdicts
    python tests/guard_mutants.py --only NAME     this one; may be repeated
    python tests/guard_mutants.py --list          the names, and what is wrong with each

`tests/mutants.py` says how they are tried. A name begins with the kind of the guard and the clause.

Long on purpose: it is a list, one entry for each edit, and a reader looks for one name.
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
                "                self._bucket.upload(path, content)\n                new = Content(path)\n",
                "                new = Content(path)\n",
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
                'lambda _: Content(), self._start(key, writer, "delete")[0])\n',
                'lambda _: Content(), self._start(key, writer, "delete")[0])\n            self._bucket.remove([key])\n',
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
                "            after = follow(before, mark, content(before), nonce)\n",
                "            after = follow(before, mark, content(before), nonce)\n"
                "            if before is not None and before.mark.epoch == mark.epoch:\n"
                "                after = Pointer(before.mark, content(before)[0], before.nonces, content(before)[1])\n",
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
                "    INSERT INTO leasehold_guard.fences AS f (key,",
                "    PERFORM 1 FROM leasehold_guard.marks WHERE key = p_key FOR UPDATE;\n"
                "    INSERT INTO leasehold_guard.fences AS f (key,",
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
                "PERFORM leasehold_guard.admit(\n        ROW(",
                "PERFORM concat(\n        ROW(",
            ),
            Edit(
                _SQL + "postgres.sql",
                "'mark', leasehold_guard.mark(p_key)::json)",
                "'mark', json_build_object('epoch', p_epoch, 'counter', 1, 'owner', p_owner, 'store', p_store))",
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
                _SQL + "proof.py",
                "if not refused or known is None or known.mark.epoch != new.writer.epoch:",
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
        (Edit(_SQL + "postgres.sql", "      AND (m.store = excluded.store OR NOT f.same_store)", ""),),
        (_SQL_PG + "test_g9_a_strict_guard_refuses_every_other_store",),
    ),
    Mutant(
        "sql-g9-equal",
        "PostgreSQL: an equal epoch of another store takes the key over.",
        (Edit(_SQL + "postgres.sql", "      AND (m.store = excluded.store OR m.epoch < excluded.epoch)\n", ""),),
        (_SQL_PG + "test_g9_an_equal_epoch_of_another_store_is_refused",),
    ),
    Mutant(
        "sql-g9-equal-sqlite",
        "SQLite: an equal epoch of another store takes the key over.",
        (Edit(_SQL + "sqlite.py", "AND (m.store = excluded.store OR m.epoch < excluded.epoch) ", ""),),
        (_SQL_LITE + "test_g9_an_equal_epoch_of_another_store_is_refused",),
    ),
    Mutant(
        "sql-g9-log",
        "SQLite: a key that passes to another store is not logged.",
        (Edit(_SQL + "sqlite.py", "CASE WHEN m.store <> excluded.store THEN", "CASE WHEN false THEN"),),
        (_SQL_LITE + "test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged",),
    ),
)

# Files

_F = "guards/files/"
_FILES = "tests/guards/test_files.py::"
_FILE_DURABILITY = "tests/guards/test_file_durability.py::"
_FILE_LOCKS = "tests/guards/test_file_locks.py::"
_FILE_BATTERY = "tests/guards/test_file_battery.py::TestFileGuard::"

FILES = (
    Mutant(
        "file-g1-compare",
        "The epoch is compared before the lock only.",
        (
            Edit(
                _F + "guard.py",
                "        mark = self._admit(key, file.read(), writer, verb)\n",
                "        last = file.read()\n"
                "        mark = Mark(writer.epoch, (last.counter if last else 0) + 1, writer.owner, writer.store)\n",
            ),
        ),
        (
            _FILE_BATTERY + "test_g2_after_a_seal_nothing_changes",
            _FILE_BATTERY + "test_g4_the_mark_is_seen_by_another_process",
        ),
    ),
    Mutant(
        "file-g2-lock",
        "The lock of a key excludes no other writer.",
        (
            Edit(
                _F + "locks.py",
                "            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
                "            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
            ),
        ),
        (_FILE_LOCKS + "test_a_busy_lock_is_waited_for_and_then_names_its_holder",),
    ),
    Mutant(
        "file-g2-order",
        "The file gets its name before the mark is raised.",
        (
            Edit(
                _F + "guard.py", '            self._raise_mark(key, writer, verb)\n            self.at("marked")\n', ""
            ),
            Edit(
                _F + "guard.py",
                '            self.at("renamed")\n',
                "            self._raise_mark(key, writer, verb)\n"
                '            self.at("marked")\n            self.at("renamed")\n',
            ),
        ),
        (
            _FILE_DURABILITY + "test_a_write_syncs_three_times_and_the_mark_before_the_rename",
            _FILE_DURABILITY + "test_whatever_fails_leaves_old_or_new_under_a_mark_that_is_not_below",
        ),
    ),
    Mutant(
        "file-g2-data",
        "The data is not synced before the file gets its name.",
        (
            Edit(
                _F + "guard.py",
                '                sync_file(new.fd)\n            self.at("prepared")\n',
                '            self.at("prepared")\n',
            ),
        ),
        (_FILE_DURABILITY + "test_a_write_syncs_three_times_and_the_mark_before_the_rename",),
    ),
    Mutant(
        "file-g2-half",
        "A file is written where it is, and not renamed.",
        (
            Edit(
                _F + "temporary.py",
                "        os.rename(self.path, path)\n",
                "        with open(self.path, 'rb') as new, open(path, 'wb') as old:\n"
                "            old.write(new.read())\n        os.unlink(self.path)\n",
            ),
        ),
        (_FILE_DURABILITY + "test_a_write_syncs_three_times_and_the_mark_before_the_rename",),
    ),
    Mutant(
        "file-g2-append",
        "An append is made to the file as it was before the lock.",
        (Edit(_F + "guard.py", "            again()\n", ""),),
        (
            _FILES + "test_an_append_is_made_to_what_is_there_when_it_counts",
            _FILES + "test_appends_from_many_threads_are_all_kept",
        ),
    ),
    Mutant(
        "file-g2-fork",
        "A child that is forked inside a write goes on with it, without the lock.",
        (
            Edit(
                _F + "locks.py",
                "        if self._process != os.getpid():\n            raise",
                "        if False:\n            raise",
            ),
        ),
        (_FILE_LOCKS + "test_a_child_that_is_forked_inside_a_write_neither_writes_nor_holds_the_lock",),
    ),
    Mutant(
        "file-g3-read",
        "A read does not seal.",
        (
            Edit(
                _F + "guard.py",
                "        self.seal(key, **presented)\n        self._check_current",
                "        self._check_current",
            ),
        ),
        (_FILE_BATTERY + "test_g3_read_seals_and_then_reads",),
    ),
    Mutant(
        "file-g3-check",
        "A read does not check that the lease is current.",
        (Edit(_F + "guard.py", "        self._check_current(presented)\n", ""),),
        (_FILE_BATTERY + "test_g3_read_checks_that_the_lease_is_current",),
    ),
    Mutant(
        "file-g3-holder",
        "A seal that waits in vain does not name the process that it waits for.",
        (Edit(_F + "locks.py", "        self._name_holder()\n", ""),),
        (_FILE_BATTERY + "test_g3_a_stopped_writer_does_not_block_a_seal_silently",),
    ),
    Mutant(
        "file-g4-delete",
        "A deletion removes the mark with the file.",
        (
            Edit(
                _F + "guard.py",
                "                    os.unlink(path)\n            else:",
                "                    os.unlink(path)\n                    os.unlink(self._own_path('marks', key))\n            else:",
            ),
        ),
        (_FILE_BATTERY + "test_g4_the_mark_survives_the_deletion_of_the_data",),
    ),
    Mutant(
        "file-g4-durable",
        "A mark is overwritten and not synced.",
        (Edit(_F + "mark_files.py", "                        sync_content(fd)\n", ""),),
        (_FILE_DURABILITY + "test_a_write_syncs_three_times_and_the_mark_before_the_rename",),
    ),
    Mutant(
        "file-g4-folded",
        "Where two names are one file, each has a mark of its own.",
        (Edit(_F + "guard.py", "names.fold(key) if self._is_folding else key", "key"),),
        (_FILES + "test_where_names_are_folded_two_names_of_one_file_share_a_mark",),
    ),
    Mutant(
        "file-g5-none",
        "A damaged mark counts as none.",
        (
            Edit(
                _F + "mark_files.py",
                '        raise unreadable(self._resource, f"{self._path} is damaged: {content[:60]!r}")\n',
                "        return None\n",
            ),
        ),
        (_FILE_BATTERY + "test_g5_an_unreadable_mark_refuses_every_write",),
    ),
    Mutant(
        "file-g5-checksum",
        "A mark is believed without its checksum.",
        (Edit(_F + "mark_files.py", 'not rest.startswith(b"%08x\\n" % zlib.crc32(text)) or ', ""),),
        (_FILES + "test_a_damaged_mark_refuses_everything_and_nothing_is_written",),
    ),
    Mutant(
        "file-g6-lock",
        "`prove` does not try whether a lock excludes.",
        (Edit(_F + "guard.py", "            self._prove_lock(key, newer)\n", ""),),
        (_FILE_BATTERY + "test_g6_prove_fails_on_a_resource_that_ignores_the_condition",),
    ),
    Mutant(
        "file-g6-network",
        "A file system that other machines write to is taken.",
        (Edit(_F + "file_systems.py", "return kind in NETWORK or", "return"),),
        (_FILE_LOCKS + "test_a_file_system_that_other_machines_write_to_is_refused",),
    ),
    Mutant(
        "file-g8-synced",
        "A write whose folder could not be synced counts as not written.",
        (
            Edit(
                _F + "guard.py",
                "            except OSError as error:\n                raise InDoubt",
                "            except ZeroDivisionError as error:\n                raise InDoubt",
            ),
        ),
        (_FILE_DURABILITY + "test_whatever_fails_leaves_old_or_new_under_a_mark_that_is_not_below",),
    ),
    Mutant(
        "file-names",
        "A symbolic link gives a file a second name.",
        (Edit(_F + "names.py", "        if stat.S_ISLNK(mode):\n", "        if False:\n"),),
        (_FILES + "test_symbolic_links_are_refused",),
    ),
    Mutant(
        "file-nested",
        "One file has guards at two heights, which do not see each other's marks.",
        (Edit(_F + "names.py", "        if number < len(parts) and _has_guard(path):\n", "        if False:\n"),),
        (_FILES + "test_a_file_has_one_guard_and_not_two_at_two_heights",),
    ),
    Mutant(
        "file-temporary",
        "The file of a writer that is alive is taken for that of a dead one.",
        (
            Edit(
                _F + "temporary.py",
                "                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
                "",
            ),
        ),
        (_FILE_DURABILITY + "test_temporary_files_of_dead_writers_are_removed_and_those_of_live_ones_stay",),
    ),
)

# git

_G = "guards/git/"
_GIT = "tests/guards/test_git.py::"
_GIT_BATTERY = "tests/guards/test_git_battery.py::TestGitGuardOverTheNetwork::"
_GAP = _GIT + "test_a_seal_in_the_gap_between_advertisement_and_push_refuses_it"

GIT = (
    Mutant(
        "git-g1-diverge",
        "A commit that does not follow the tip is pushed over it.",
        (Edit(_G + "guard.py", "        if tip in (source.commit, *source.parents):\n", "        if True:\n"),),
        (_GIT + "test_commits_that_part_under_one_epoch_are_a_conflict",),
    ),
    Mutant(
        "git-g1-sibling",
        "A push that meets another one under the same epoch is not tried again.",
        (Edit(_G + "guard.py", "_ATTEMPTS = 10\n", "_ATTEMPTS = 1\n"),),
        (_GIT + "test_commits_that_part_under_one_epoch_are_a_conflict",),
    ),
    Mutant(
        "git-g2-atomic",
        "Branch and mark are pushed together, and each succeeds or fails alone.",
        (Edit(_G + "remote.py", '"--porcelain", "--atomic", ', '"--porcelain", '),),
        (_GAP,),
    ),
    Mutant(
        "git-g2-force",
        "The mark is replaced whatever it has become.",
        (
            Edit(
                _G + "remote.py",
                "for name, before, _ in self.changes]",
                'for name, before, _ in self.changes if "heads" in name]',
            ),
            Edit(_G + "remote.py", """specs = [f"{after or ''}:{name}\"""", """specs = [f"+{after or ''}:{name}\""""),
        ),
        (_GIT_BATTERY + "test_g2_after_a_seal_nothing_changes",),
    ),
    Mutant(
        "git-g2-mark",
        "The mark is pushed before the branch, in a push of its own.",
        (
            Edit(
                _G + "guard.py",
                "        ran = Push(tuple(changes)).run(self._git, self.remote, cwd=folder)\n",
                "        for change in reversed(changes):\n"
                "            ran = Push((change,)).run(self._git, self.remote, cwd=folder)\n"
                "            if ran.code != 0:\n                break\n            self.at('prepared')\n",
            ),
        ),
        (_GIT_BATTERY + "test_g2_a_write_goes_through_its_steps",),
    ),
    Mutant(
        "git-g3-fetch",
        "A fetch does not seal.",
        (
            Edit(
                _G + "guard.py",
                "        self.seal(branch, **presented)\n        self._check_current",
                "        self._check_current",
            ),
        ),
        (_GIT_BATTERY + "test_g3_read_seals_and_then_reads",),
    ),
    Mutant(
        "git-g3-check",
        "A fetch does not check that the lease is current.",
        (Edit(_G + "guard.py", "        self._check_current(presented)\n", ""),),
        (_GIT_BATTERY + "test_g3_read_checks_that_the_lease_is_current",),
    ),
    Mutant(
        "git-g4-delete",
        "A deletion removes the mark with the branch.",
        (
            Edit(
                _G + "guard.py",
                "before.mark_id, mark_id)]\n",
                "before.mark_id, None if wish.verb == 'delete' else mark_id)]\n",
            ),
        ),
        (_GIT + "test_a_branch_is_pushed_sealed_fetched_and_deleted",),
    ),
    Mutant(
        "git-g4-vanished",
        "A mark that has vanished counts as none.",
        (
            Edit(
                _G + "guard.py",
                "            if now.mark is None and before.mark is not None:\n",
                "            if False:\n",
            ),
        ),
        (_GIT + "test_a_mark_that_has_vanished_is_not_taken_for_none",),
    ),
    Mutant(
        "git-g5-none",
        "A commit without facts counts as no mark.",
        (
            Edit(
                _G + "remote.py",
                "mark = None if mark_id is None else self._mark(mark_id, mark_ref, resource)\n",
                "mark = None\n            mark_id = None\n",
            ),
        ),
        (_GIT + "test_a_mark_that_is_none_refuses_every_write",),
    ),
    Mutant(
        "git-g6-atomic",
        "`prove` passes on a server without atomic pushes.",
        (
            Edit(
                _G + "prove.py",
                "    if begin.has_no_atomic_push:\n        raise no_atomic_push(remote.url)\n",
                "    if begin.has_no_atomic_push:\n        return\n",
            ),
        ),
        (_GIT_BATTERY + "test_g6_prove_fails_on_a_resource_that_ignores_the_condition",),
    ),
    Mutant(
        "git-g8-nonce",
        "A push whose reply was lost is not looked for.",
        (
            Edit(
                _G + "guard.py",
                "            if now.mark is not None and nonces & set(now.mark.nonces):\n",
                "            if False:\n",
            ),
        ),
        (_GIT_BATTERY + "test_g8_a_write_whose_reply_was_lost_is_recognised",),
    ),
    Mutant(
        "git-g8-doubt",
        "A push that 16 writes have followed is called refused.",
        (Edit(_G + "guard.py", "now.mark.mark.counter - mark.counter >= RECENT", "False"),),
        (_GIT + "test_a_lost_reply_is_recognised_as_long_as_the_mark_remembers_it",),
    ),
    Mutant(
        "git-g8-unreadable",
        "A push without a reply is called unavailable if nothing can be read afterwards.",
        (
            Edit(
                _G + "guard.py",
                "            if not unknown:\n                raise\n",
                "            if True:\n                raise\n",
            ),
        ),
        (_GIT + "test_a_push_without_any_reply_is_in_doubt",),
    ),
    Mutant(
        "git-past",
        "A push past the guard is overlooked.",
        (Edit(_G + "remote.py", "self.mark is not None and self.mark.commit != self.tip", "False"),),
        (_GIT + "test_a_push_past_the_guard_is_seen_at_the_next_write",),
    ),
    Mutant(
        "git-past-seal",
        "A seal hides a push past the guard.",
        (Edit(_G + "guard.py", "            return guarded  #", "            return before.tip  #"),),
        (_GIT + "test_a_push_past_the_guard_is_seen_at_the_next_write",),
    ),
    Mutant(
        "git-option",
        "The name of a branch can be an option of git.",
        (Edit(_G + "names.py", "|^[-./]|", "|^[./]|"),),
        (_GIT + "test_what_git_refuses_as_a_branch_is_refused_here",),
    ),
    Mutant(
        "git-environment",
        "The variables of a git that runs us lead to its repository.",
        (Edit(_G + "command.py", 'if not name.startswith("GIT_") or name in _KEPT', "if True"),),
        (_GIT + "test_the_variables_of_a_git_around_us_do_not_lead_us_astray",),
    ),
)

# Gates, HTTP and credentials

_GATE = "guards/gate/"
_H = "guards/http/"
_GATES = "tests/guards/test_gate.py::"
_GATE_FAULTS = "tests/guards/test_gate_faults.py::"
_GATE_BATTERY = "tests/guards/test_gate_battery.py::"
_MIDDLEWARE = "tests/guards/test_http_middleware.py::"
_WSGI = "tests/guards/test_http_wsgi.py::"
_CLIENTS = "tests/guards/test_http_clients.py::"
_CREDENTIALS = "tests/guards/test_credentials.py::"

GATES = (
    Mutant(
        "gate-g1-memory",
        "A use in memory is admitted whatever the key stands at.",
        (
            Edit(
                _GATE + "memory.py",
                "if mark.epoch != use.epoch or mark.owner != use.owner or mark.store != store:",
                "if False:",
            ),
        ),
        (_GATE_FAULTS + "test_refusals_of_async_uses_are_counted",),
    ),
    Mutant(
        "gate-g1-postgres",
        "On PostgreSQL a mark is written over one that was not compared.",
        (
            Edit(
                _GATE + "rows.py",
                "WHERE key = ? AND epoch = ? AND store = ? AND",
                "WHERE key = ? AND ? > 0 AND ? <> '' AND",
            ),
        ),
        (_GATES + "test_a_seal_waits_for_an_older_use_and_refuses_others_meanwhile",),
    ),
    Mutant(
        "gate-g2-unrecorded",
        "A use is admitted and not recorded, so no seal waits for it.",
        (Edit(_GATE + "rows.py", "            run(_ADD_USE, _row(use))\n", ""),),
        (_GATES + "test_a_seal_waits_for_an_older_use_and_refuses_others_meanwhile",),
    ),
    Mutant(
        "gate-g2-no-drain",
        "A seal does not wait for older uses.",
        (
            Edit(
                _GATE + "gate.py",
                "        while uses := self._home.running(key, below):\n",
                "        while uses := []:\n",
            ),
        ),
        (_GATES + "test_a_seal_waits_for_an_older_use_and_refuses_others_meanwhile",),
    ),
    Mutant(
        "gate-g2-first-use",
        "The first use of a newer owner begins beside older ones.",
        (
            Edit(
                _GATE + "memory.py",
                "            if before is not None and before.epoch < use.epoch:\n                return None\n",
                "",
            ),
        ),
        (_GATES + "test_the_first_use_of_a_newer_owner_waits_for_the_older_uses_too",),
    ),
    Mutant(
        "gate-g2-doubt-lost",
        "A use that did not end in time is forgotten and not recorded.",
        (
            Edit(
                _GATE + "memory.py",
                "            with self._database.transaction() as run:\n                for use in found:\n",
                "            with self._database.transaction() as run:\n                for use in found[:0]:\n",
            ),
        ),
        (_GATES + "test_a_use_that_does_not_end_in_time_is_in_doubt_once",),
    ),
    Mutant(
        "gate-g2-dead",
        "A use of a dead process is waited for.",
        (
            Edit(
                _GATE + "gate.py",
                "        if use.process is not None and is_gone(use.process):\n",
                "        if False and use.process:\n",
            ),
        ),
        (_GATES + "test_a_use_of_a_dead_process_is_in_doubt_at_once",),
    ),
    Mutant(
        "gate-g2-second-process",
        "A second process can open a gate whose uses are in memory.",
        (Edit(_GATE + "memory.py", "busy_seconds=_BUSY_SECONDS, exclusive=True)", "busy_seconds=_BUSY_SECONDS)"),),
        (_GATES + "test_a_second_process_on_a_gate_in_memory_fails_at_start",),
    ),
    Mutant(
        "gate-g2-crash",
        "After a crash nothing is in doubt.",
        (Edit(_GATE + "memory.py", "        if crashed:\n", "        if False:\n"),),
        (_GATES + "test_after_a_crash_the_keys_that_were_in_use_are_in_doubt",),
    ),
    Mutant(
        "gate-g3-not-durable",
        "A seal raises the mark in memory alone.",
        (
            Edit(
                _GATE + "memory.py",
                "        self._database.run(_SET_MARK, (key, after.epoch, limit, after.owner, after.store, self._session))\n",
                "",
            ),
        ),
        (_GATES + "test_the_mark_of_a_gate_in_memory_goes_up_over_restarts",),
    ),
    Mutant(
        "gate-g4-counter",
        "The counter of a mark in memory falls back after a restart.",
        (
            Edit(
                _GATE + "memory.py", "limit = min(after.counter + RESERVED, EPOCH_LIMIT - 1)", "limit = after.counter"
            ),
            Edit(_GATE + "memory.py", "            if mark.counter >= entry.limit:", "            if False:"),
        ),
        (_GATES + "test_the_mark_of_a_gate_in_memory_goes_up_over_restarts",),
    ),
    Mutant(
        "gate-g5-unreadable",
        "A row that is not a mark is taken for one.",
        (
            Edit(
                _GATE + "rows.py",
                "    if not whole or not all(isinstance(text, str) for text in mark[2:]):\n",
                "    if False:\n",
            ),
        ),
        (_GATE_BATTERY + "TestGateInSqlite::test_g5_an_unreadable_mark_refuses_every_write",),
    ),
    Mutant(
        "gate-g6-prove",
        "`prove` does not try a use after the seal.",
        (
            Edit(
                _GATE + "gate.py",
                "            self._home.end(self._home_use(key, old))\n            raise Unfenced",
                "            return\n            raise Unfenced",
            ),
        ),
        (_GATE_FAULTS + "test_prove_finds_a_state_that_forgets_or_does_not_compare",),
    ),
    Mutant(
        "gate-g8-unended",
        "A use whose recording got no reply stays there.",
        (
            Edit(
                _GATE + "gate.py", "                self._home.end(running)  # Ctrl-C", "                pass  # Ctrl-C"
            ),
        ),
        (_GATE_FAULTS + "test_a_use_whose_recording_is_unknown_is_ended",),
    ),
    Mutant(
        "http-g2-early-end",
        "A use ends when the response begins.",
        (Edit(_H + "asgi.py", 'elif kind == "http.response.trailers":', 'elif kind == "http.response.start":'),),
        (_MIDDLEWARE + "test_a_response_that_breaks_off_is_in_doubt",),
    ),
    Mutant(
        "http-g2-cancelled",
        "A handler that was cancelled is called ended.",
        (
            Edit(
                _H + "asgi.py",
                '        doubt = "its handler was cancelled before the response had ended"\n',
                '        doubt = ""\n',
            ),
        ),
        (_MIDDLEWARE + "test_a_handler_that_is_cancelled_is_in_doubt",),
    ),
    Mutant(
        "http-g2-wsgi-close",
        "A WSGI response that is closed early is called ended.",
        (Edit(_H + "wsgi.py", "        if self._has_ended or not self._doubt:\n", "        if True:\n"),),
        (_WSGI + "test_a_wsgi_response_that_is_closed_early_is_in_doubt",),
    ),
    Mutant(
        "http-g5-open",
        "A request without a lease is handled.",
        (
            Edit(
                _H + "requests.py",
                "        if key is None:\n            return None\n",
                "        if key is None or not credentials:\n            return None\n",
            ),
        ),
        (_MIDDLEWARE + "test_a_request_without_a_lease_is_refused",),
    ),
    Mutant(
        "http-g8-proxy",
        "The client takes the answer of a proxy for that of the service.",
        (Edit(_H + "client.py", "        if response.status_code in _UNKNOWN:\n", "        if False:\n"),),
        (_CLIENTS + "test_a_write_is_never_sent_twice",),
    ),
    Mutant(
        "http-redirect",
        "requests carries the credential to another host.",
        (Edit(_H + "client.py", "        if response.is_redirect:\n", "        if False:\n"),),
        (_CLIENTS + "test_no_other_host_gets_the_credential",),
    ),
    Mutant(
        "http-shutdown",
        "A server that shuts down leaves its keys in doubt.",
        (Edit(_H + "asgi.py", "                await self._gate.aio.rest()\n", "                pass\n"),),
        (_CLIENTS + "test_a_server_that_shuts_down_at_rest_leaves_nothing_in_doubt",),
    ),
    Mutant(
        "credential-type",
        "Another kind of token of the same key passes.",
        (Edit("credentials.py", '        if header["typ"] != TYPE:\n', "        if False:\n"),),
        (_CREDENTIALS + "test_another_kind_of_token_of_the_same_key_is_refused",),
    ),
    Mutant(
        "credential-signature",
        "No signature is compared.",
        (Edit("credentials.py", "        self._check_signature(credential, known)\n", ""),),
        (_CREDENTIALS + "test_a_changed_payload_is_refused",),
    ),
    Mutant(
        "credential-scope",
        "A credential covers every key.",
        (Edit("credentials.py", "        if not self._covers(claims, key):\n", "        if False:\n"),),
        (_CREDENTIALS + "test_exact_keys_cover_themselves_alone",),
    ),
    Mutant(
        "credential-audience",
        "A credential for another guard passes.",
        (Edit("credentials.py", '        if claims["aud"] != audience:\n', "        if False:\n"),),
        (_CREDENTIALS + "test_a_credential_for_another_audience_is_refused",),
    ),
    Mutant(
        "credential-epoch",
        "An epoch of any size is believed.",
        (
            Edit(
                "credentials.py",
                '        checks.whole(claims.get("epoch"), "epoch", least=1, most=EPOCH_LIMIT - 1)\n',
                "",
            ),
        ),
        (_CREDENTIALS + "test_an_epoch_that_cannot_be_one_is_refused_on_both_sides",),
    ),
    Mutant(
        "credential-expired",
        "A credential that was verified once is good for ever.",
        (
            Edit(
                "credentials.py",
                "        if expires is not None and self._clock.now()",
                "        if expires is None and self._clock.now()",
            ),
        ),
        (_CREDENTIALS + "test_an_expired_credential_is_not_a_stale_epoch",),
    ),
    Mutant(
        "credential-stale",
        "A lease that was lost mints.",
        (Edit("lease/minting.py", "        self.check()\n", ""),),
        (_CREDENTIALS + "test_a_lease_mints_while_its_epoch_is_current",),
    ),
)

MUTANTS = (*OBJECTS, *SQL, *FILES, *GIT, *GATES)

if __name__ == "__main__":
    sys.exit(main(table=MUTANTS))
