"""
Which tests drive each verb through each of its paths.

A clause that holds for one item may be broken for several, on a fast path, or after a wait: each path has code of its
own. A cell of the table names tests that go that way, of the contract (`test_c…`, on every store) or of a file; or it
says why the verb has no such path. test_paths.py sees that no cell is empty and that every test exists.
"""

from __future__ import annotations

PATHS = (
    "one item",
    "several alike",
    "several unlike",
    "the fast claim",  # the verb itself, or under a lease that it granted
    "waits for a lock",
    "in a caller's transaction",
    "after a settlement at REPEATABLE READ",
)

_BESIDE = "tests/postgres/test_beside.py::"
_SNAPSHOTS = "tests/postgres/test_snapshots.py::"
_ADDING = "tests/postgres/test_adding.py::"
_PICKING_UP = "tests/postgres/test_picking_up.py::"
_TRAPS = "tests/postgres/test_traps.py::"
_ALIKE = "tests/differential/test_stores_alike.py::"

_COMPARED = "test_c3_a_lease_of_every_path_of_a_claim_is_compared"
_SETTLED = "test_c24_every_path_of_a_settlement_ends_its_lease_alike"
_BATCH = "test_c3_each_completion_of_a_batch_is_compared"
_JOINED = (
    "test_c41_a_current_owners_transaction_commits",
    "test_c41_a_stale_owners_transaction_does_not",
    "test_c42_a_settlement_does_what_it_does_outside",
    _TRAPS + "test_trap_13_a_pause_before_the_commit_passes_nothing",
)
_WAITS = (
    _BESIDE + "test_a_verb_that_meets_a_takeover_waits_for_it_and_is_refused",
    _BESIDE + "test_a_verb_that_had_to_wait_is_done_if_the_lease_is_still_its_own",
)
_SOME_WAIT = _BESIDE + "test_of_a_batch_only_what_collides_waits"
_OVER = _SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_the_lease_is_over"
_SOME_OVER = _SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_a_batch_passes_over_that_lease"
_OPERATORS_AFTER = _SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_operators_find_the_job_as_it_is"
_MEETS_CLAIM = _BESIDE + "test_an_operator_who_saw_a_pending_job_meets_the_claim_beside_it"
_MEETS_OWNER = _BESIDE + "test_an_operator_who_saw_a_running_job_meets_the_settlement_beside_it"

_ONE_AT_A_TIME = "- it takes one item"
_NO_LEASE = "- it needs no lease"
_NO_CONNECTION = "- it takes no connection"


def _queue(*one: str) -> dict[str, tuple[str, ...] | str]:
    """The row of a verb about a whole queue."""
    return {
        "one item": one,
        "several alike": _ONE_AT_A_TIME,
        "several unlike": _ONE_AT_A_TIME,
        "the fast claim": ("test_c49_a_claim_takes_nothing_from_a_paused_queue",),
        "waits for a lock": (
            _BESIDE + "test_of_two_who_decide_about_a_queue_the_later_one_counts",
            _BESIDE + "test_a_pause_waits_for_no_claim_and_a_later_claim_takes_nothing",
        ),
        "in a caller's transaction": _NO_CONNECTION,
        "after a settlement at REPEATABLE READ": _NO_LEASE,
    }


def _operator(*one: str, waits: tuple[str, ...]) -> dict[str, tuple[str, ...] | str]:
    """The row of an operator's verb."""
    return {
        "one item": ("test_c31_a_stale_operator_is_refused_with_the_facts", *one),
        "several alike": _ONE_AT_A_TIME,
        "several unlike": _ONE_AT_A_TIME,
        "the fast claim": "- it names the epoch that it saw, whichever path has granted it",
        "waits for a lock": waits,
        "in a caller's transaction": _NO_CONNECTION,
        "after a settlement at REPEATABLE READ": (_OPERATORS_AFTER,),
    }


def _effect(*one: str) -> dict[str, tuple[str, ...] | str]:
    """The row of a verb of effects."""
    return {
        "one item": one,
        "several alike": _ONE_AT_A_TIME,
        "several unlike": _ONE_AT_A_TIME,
        "the fast claim": (_COMPARED,),
        "waits for a lock": (*_WAITS, _BESIDE + "test_of_two_callers_under_one_epoch_one_gets_a_fresh_effect"),
        "in a caller's transaction": (_ALIKE + "test_every_verb_in_every_library",),  # where it is refused
        "after a settlement at REPEATABLE READ": (_OVER,),
    }


def _settlement(*one: str) -> dict[str, tuple[str, ...] | str]:
    """The row of a way to settle."""
    return {
        "one item": (_SETTLED, *one),
        "several alike": (_SETTLED, _BATCH),
        "several unlike": (_SETTLED, _BATCH),
        "the fast claim": (_COMPARED,),
        "waits for a lock": (*_WAITS, _SOME_WAIT),
        "in a caller's transaction": (
            *_JOINED,
            "test_c47_after_a_settlement_every_later_verb_of_the_transaction_is_settled",
        ),
        "after a settlement at REPEATABLE READ": (_OVER, _SOME_OVER),
    }


TABLE: dict[str, dict[str, tuple[str, ...] | str]] = {
    "add": {
        "one item": (
            "test_c10_every_path_of_an_add_keeps_all_that_is_asked_for",
            "test_c10_every_path_of_an_add_leaves_what_exists",
        ),
        "several alike": (
            "test_c10_every_path_of_an_add_keeps_all_that_is_asked_for",
            "test_c10_every_path_of_an_add_leaves_what_exists",
            "test_c12_the_same_id_twice_in_one_call_is_one_job",
        ),
        "several unlike": (
            "test_c10_every_path_of_an_add_keeps_all_that_is_asked_for",
            "test_c10_every_path_of_an_add_leaves_what_exists",
            "test_c12_the_same_unique_key_twice_in_one_call_is_one_job",
        ),
        "the fast claim": _NO_LEASE,
        "waits for a lock": (_ADDING + "test_an_add_that_waited_is_told_how_it_ended",),
        "in a caller's transaction": (
            "test_c42_jobs_are_added_with_the_callers_rows",
            "test_c42_an_add_keeps_all_that_is_asked_for",
        ),
        "after a settlement at REPEATABLE READ": _NO_LEASE,
    },
    "claim": {
        "one item": (
            "test_c15_every_path_of_a_claim_grants_the_length_that_counts",
            "test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job",
            "test_c18_every_path_of_a_claim_keeps_what_it_was_given",
            "test_c36_every_path_of_a_claim_sets_the_stall_deadline",
            "test_c37_every_path_of_a_claim_records_the_process",
        ),
        "several alike": (
            "test_c1_a_batch_gets_as_many_epochs_as_jobs",
            "test_c13_a_claim_takes_no_more_than_its_limit",
            "test_c15_every_path_of_a_claim_grants_the_length_that_counts",
            "test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job",
            "test_c18_every_path_of_a_claim_keeps_what_it_was_given",
            "test_c36_every_path_of_a_claim_sets_the_stall_deadline",
            "test_c37_every_path_of_a_claim_records_the_process",
        ),
        "several unlike": (
            "test_c13_larger_priority_then_earlier_time_then_insertion",
            "test_c14_trap_5_two_jobs_of_one_key_in_one_batch",
            "test_c57_a_batch_of_unlike_jobs_has_those_that_are_known",
            "test_c58_parked_jobs_come_in_the_order_of_all",
            "test_c15_every_path_of_a_claim_grants_the_length_that_counts",
            "test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job",
            "test_c18_every_path_of_a_claim_keeps_what_it_was_given",
            "test_c36_every_path_of_a_claim_sets_the_stall_deadline",
            "test_c37_every_path_of_a_claim_records_the_process",
        ),
        "the fast claim": (
            "test_c13_one_at_a_time_is_the_same_order",
            "test_c58_one_at_a_time_in_order_whatever_was_claimed_before",
            "test_c58_the_fast_path_sees_what_is_parked",
            "test_c15_every_path_of_a_claim_grants_the_length_that_counts",
            "test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job",
            "test_c18_every_path_of_a_claim_keeps_what_it_was_given",
            "test_c36_every_path_of_a_claim_sets_the_stall_deadline",
            "test_c37_every_path_of_a_claim_records_the_process",
            "tests/postgres/test_floors.py::test_a_job_that_was_taken_back_keeps_its_place",
            "tests/postgres/test_floors.py::test_a_job_that_stalled_keeps_its_place",
            "tests/postgres/test_floors.py::test_a_job_that_becomes_due_comes_in_its_place",
        ),
        "waits for a lock": (  # it passes over what is locked, and waits where epochs are set alone
            _TRAPS + "test_trap_5_a_job_whose_key_somebody_is_deciding_about_is_not_lost",
            _BESIDE + "test_claims_wait_for_nobody_who_takes_or_parks_by_tasks",
            _TRAPS + "test_trap_4_no_epoch_is_drawn_before_its_key_is_held",
            _BESIDE + "test_of_two_claims_that_find_another_server_one_advances_the_epochs",
        ),
        "in a caller's transaction": _NO_CONNECTION,
        "after a settlement at REPEATABLE READ": (
            _SNAPSHOTS + "test_a_key_that_was_freed_at_repeatable_read_can_be_taken_at_once",
            _TRAPS + "test_trap_14_a_released_job_can_be_claimed_after_a_snapshot_released_it",
            "tests/postgres/test_hostile.py::test_a_claim_can_take_more_jobs_than_it_tidies_up_after",
            "tests/postgres/test_hostile.py::test_a_claim_takes_what_is_put_back_between_its_statements",
        ),
    },
    "renew": {
        "one item": (
            "test_c20_every_path_of_a_renewal_moves_its_deadline_and_nothing_else",
            "test_c3_a_write_with_an_old_epoch_changes_nothing",
        ),
        "several alike": ("test_c20_every_path_of_a_renewal_moves_its_deadline_and_nothing_else",),
        "several unlike": (
            "test_c20_every_path_of_a_renewal_moves_its_deadline_and_nothing_else",
            "test_c20_a_batch_renews_each_by_its_own_length",
            "test_c3_a_refusal_stands_in_the_place_of_its_item",
        ),
        "the fast claim": (_COMPARED,),
        "waits for a lock": (
            *_WAITS,
            _SOME_WAIT,
            _BESIDE + "test_a_renewal_that_had_to_wait_does_not_renew_the_next_owner",
        ),
        "in a caller's transaction": (
            "test_c46_a_renewal_in_between_fails_nothing",
            _ALIKE + "test_every_verb_in_every_library",
        ),
        "after a settlement at REPEATABLE READ": (_OVER, _SOME_OVER),
    },
    "progress": {
        "one item": (
            "test_c21_every_path_of_a_report_keeps_it_and_holds_off_the_stall",
            "test_c3_a_write_with_an_old_epoch_changes_nothing",
        ),
        "several alike": ("test_c21_every_path_of_a_report_keeps_it_and_holds_off_the_stall",),
        "several unlike": (
            "test_c21_every_path_of_a_report_keeps_it_and_holds_off_the_stall",
            "test_c3_a_refusal_stands_in_the_place_of_its_item",
        ),
        "the fast claim": (_COMPARED,),
        "waits for a lock": (*_WAITS, _SOME_WAIT),
        "in a caller's transaction": (
            "test_c46_progress_commits_with_the_rows",
            "test_c46_progress_rolls_back_with_the_rows",
            "test_c46_the_later_report_counts",
            "test_c46_progress_moves_the_stall_deadline_from_the_commit_on",
            "test_c41_a_stale_owners_transaction_does_not",
        ),
        "after a settlement at REPEATABLE READ": (_OVER, _SOME_OVER),
    },
    "accept": {
        "one item": (
            "test_c62_an_accepted_transfer_lasts_from_now_on",
            "test_c62_a_wrong_name_or_epoch_is_left_out",
            "test_c62_what_has_moved_since_is_left_out",
        ),
        "several alike": ("test_c62_what_was_picked_up_before_is_left_out",),
        "several unlike": ("test_c62_what_was_picked_up_before_is_left_out",),
        "the fast claim": "- it is about transfers, which no claim grants",
        "waits for a lock": (
            _PICKING_UP + "test_an_accept_that_meets_an_operator_waits_for_it",
            _PICKING_UP + "test_of_two_accepts_the_later_one_waits_for_the_first",
        ),
        "in a caller's transaction": _NO_CONNECTION,
        "after a settlement at REPEATABLE READ": (
            _PICKING_UP + "test_a_transfer_that_a_snapshot_settled_is_neither_shown_nor_accepted",
        ),
    },
    "add_children": {
        "one item": (
            "test_c23_every_path_of_adding_children_keeps_all_that_is_asked_for",
            "test_c3_a_write_with_an_old_epoch_changes_nothing",
        ),
        "several alike": (
            "test_c23_every_path_of_adding_children_keeps_all_that_is_asked_for",
            "test_c23_a_refused_call_adds_none",
        ),
        "several unlike": (
            "test_c23_every_path_of_adding_children_keeps_all_that_is_asked_for",
            "test_c23_a_second_run_makes_no_duplicates",
        ),
        "the fast claim": (_COMPARED,),
        "waits for a lock": (*_WAITS, _ADDING + "test_an_add_that_waited_is_told_how_it_ended"),
        "in a caller's transaction": (
            "test_c41_a_current_owners_transaction_commits",
            "test_c41_a_stale_owners_transaction_does_not",
            "test_c42_an_add_keeps_all_that_is_asked_for",
        ),
        "after a settlement at REPEATABLE READ": (_OVER,),
    },
    "begin_effect": _effect(
        "test_c29_the_first_to_begin_is_fresh", "test_c3_a_write_with_an_old_epoch_changes_nothing"
    ),
    "end_effect": _effect(
        "test_c30_the_outcome_is_recorded_under_the_current_epoch", "test_c30_a_stale_owner_cannot_say_how_it_ended"
    ),
    "record": {
        "one item": (
            "test_c64_a_note_of_a_guard_is_an_event",
            "test_c64_only_the_current_owner_records_its_keys",
        ),
        "several alike": _ONE_AT_A_TIME,
        "several unlike": _ONE_AT_A_TIME,
        "the fast claim": ("test_c64_only_the_current_owner_records_its_keys",),
        "waits for a lock": _WAITS,
        "in a caller's transaction": _NO_CONNECTION,
        "after a settlement at REPEATABLE READ": (_OVER,),
    },
    "complete": _settlement("test_c24_a_completion_is_kept_with_its_result"),
    "fail": _settlement("test_c25_a_failure_goes_back_after_its_delay", "test_c25_an_owner_may_say_not_to_retry"),
    "release": _settlement("test_c26_a_released_job_is_due_after_its_delay"),
    "transfer": _operator(
        "test_c31_a_transfer_is_a_lease_for_the_new_owner",
        waits=(
            _MEETS_CLAIM,
            _MEETS_OWNER,
            _BESIDE + "test_a_transfer_waits_for_a_claim_that_decides_about_its_key",
        ),
    ),
    "cancel": _operator("test_c31_a_cancelled_job_stays_cancelled", waits=(_MEETS_CLAIM, _MEETS_OWNER)),
    "finish": _operator("test_c31_a_job_finished_by_hand_has_the_given_result", waits=(_MEETS_CLAIM, _MEETS_OWNER)),
    "replay": _operator(
        "test_c34_a_replayed_job_begins_anew", waits=(_BESIDE + "test_of_two_replays_of_one_job_one_is_done",)
    ),
    "requeue": _operator(
        "test_c48_a_requeued_job_is_due_at_its_old_place_and_keeps_its_budgets",
        "test_c48_the_owner_of_a_requeued_job_is_refused_with_who_and_why",
        waits=(_MEETS_OWNER,),
    ),
    "resolve": _operator(
        "test_c35_the_next_owner_gets_the_resolved_outcome",
        waits=(_BESIDE + "test_an_operator_does_not_resolve_what_the_owner_is_recording",),
    ),
    "prune_job": _operator(
        "test_c73_a_finished_job_is_removed_under_the_epoch_that_was_seen",
        "test_c73_what_has_moved_is_left_alone",
        "test_c73_what_is_still_needed_is_a_conflict",
        waits=(_BESIDE + "test_a_prune_of_one_job_waits_for_a_replay_and_is_refused",),
    )
    | {"after a settlement at REPEATABLE READ": (_SNAPSHOTS + "test_a_job_settled_at_repeatable_read_can_be_pruned",)},
    "pause": _queue("test_c50_a_pause_says_who_when_and_why", "test_c50_both_are_recorded"),
    "resume": _queue("test_c49_a_waiting_claim_wakes_when_a_queue_is_resumed", "test_c50_both_are_recorded"),
}
