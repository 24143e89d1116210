"""The ledger: what composes with what, what never does, and who sees what."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from raydiff.papers.pfdm import depth
from raydiff.privacy import accountants
from raydiff.privacy.accountants import Unsupported, exact, rdp
from raydiff.privacy.ledger import PUBLISHED, SETUP, Exposure, Ledger, PrivacyOdometer
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing

DELTA = 1e-5
UPLOAD = Gaussian(1.0, "example", "replace_one", "local", declared=("labels",))
CENTRAL = Gaussian(3.0, "client", "add_remove", "central")
BARE = NonPrivate("weights sent as they are")


def ledger_of(*rounds: dict[int, Event]) -> Ledger:
    """One dict per round, client -> event; -1 for what the server publishes. Each upload has 10 bytes."""
    out = Ledger()
    for number, messages in enumerate(rounds):
        for client, event in messages.items():
            if client == PUBLISHED:
                out = out.with_published(number, [event])
            else:
                out = out.with_uploads(number, [(client, event, 10)])
    return out


gaussians = st.builds(
    Gaussian,
    st.floats(0.1, 50),
    st.sampled_from(["example", "client"]),
    st.sampled_from(["replace_one", "add_remove"]),
    st.just("local"),
    steps=st.integers(1, 5),
    declared=st.lists(st.sampled_from(["labels", "counts"]), unique=True).map(tuple),
)
local_events = st.one_of(st.just(Nothing()), st.just(BARE), gaussians)
central_events = gaussians.map(lambda e: replace(e, trust="central"))
ledgers = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 4), local_events), st.none() | central_events), max_size=4
).map(lambda rounds: ledger_of(*({**uploads, **({PUBLISHED: c} if c else {})} for uploads, c in rounds)))


# --- composition -------------------------------------------------------------------------------------------


def test_clients_compose_in_parallel_and_rounds_in_sequence() -> None:
    strong, weak = replace(UPLOAD, std_over_sensitivity=5.0), UPLOAD
    ledger = ledger_of({0: strong, 1: weak}, {0: strong}, {0: strong, 2: weak})
    for name, bound in accountants.ACCOUNTANTS.items():
        worst = max(bound([strong] * 3, DELTA), bound([weak], DELTA))
        assert ledger.epsilon(DELTA, name) == worst
        assert [g.epsilon for g in ledger.guarantees(DELTA, name)] == [worst]
    assert Exposure(ledger).mu() == Exposure(ledger_of({1: weak})).mu() == 1.0
    assert Exposure(ledger_of(*[{0: strong}] * 3)).mu() == pytest.approx(math.sqrt(3) / 5)


def test_different_kinds_are_never_composed() -> None:
    kinds = [
        replace(UPLOAD, unit=unit, relation=relation)
        for unit, relation in itertools.product(("client", "example"), ("add_remove", "replace_one"))
    ]
    ledger = ledger_of(*({0: kind} for kind in kinds))
    guarantees = ledger.guarantees(DELTA, "exact")
    assert [(g.unit, g.relation, g.trust) for g in guarantees] == [(k.unit, k.relation, "local") for k in kinds]
    assert all(g.epsilon == exact([UPLOAD], DELTA) for g in guarantees)
    assert ledger.epsilon(DELTA, "exact") == math.inf  # client 0 is exposed to all four, and no theorem adds them up
    with pytest.raises(ValueError, match="do not compose"):
        Exposure(ledger).mu()


@settings(deadline=None)
@given(ledger=ledgers)
def test_every_guarantee_is_the_accountant_s_own(ledger: Ledger) -> None:
    """By a second reading of the entries: one guarantee per privacy definition that occurs, the worst client's."""
    clients = {e.client for e in ledger.entries if e.client != PUBLISHED} or {PUBLISHED}
    seen = {c: [e.event for e in ledger.entries if e.client in (c, PUBLISHED)] for c in clients}
    wanted = {}
    for events in seen.values():
        for kind in {(e.unit, e.relation, e.trust) for e in events if isinstance(e, Gaussian)}:
            for others in seen.values():
                mine = [e for e in others if isinstance(e, Gaussian) and (e.unit, e.relation, e.trust) == kind]
                bare = any(isinstance(e, NonPrivate) and e.trust == kind[2] for e in others)
                epsilon = math.inf if bare else exact(mine, DELTA)
                wanted[kind] = max(wanted.get(kind, 0.0), epsilon)
    guarantees = ledger.guarantees(DELTA, "exact")
    assert {(g.unit, g.relation, g.trust): g.epsilon for g in guarantees if g.unit} == pytest.approx(wanted)
    assert guarantees  # never blank
    assert len(guarantees) == len({(g.unit, g.relation, g.trust) for g in guarantees})


def test_nothing_sent_is_zero_and_says_so() -> None:
    for ledger in (Ledger(), ledger_of({0: Nothing(), 1: Nothing()})):
        assert ledger.epsilon(DELTA, "exact") == 0.0
        assert [str(g) for g in ledger.guarantees(DELTA, "exact")] == ["epsilon 0 (nothing sent)"]
    assert Ledger().guarantees(DELTA, "exact")[0].clients == 0


def test_a_bad_question_is_refused_even_of_an_empty_ledger_or_one_that_does_not_compose() -> None:
    mixed = ledger_of({0: UPLOAD}, {0: replace(UPLOAD, unit="client")})
    for ask in (Ledger().epsilon, Ledger().guarantees, mixed.epsilon):
        with pytest.raises(ValueError, match="accountant must be one of"):
            ask(DELTA, "moments")
        with pytest.raises(ValueError, match="delta must be in"):
            ask(0.0, "exact")


# --- the two adversaries -----------------------------------------------------------------------------------


def test_outsiders_see_the_published_result_in_place_of_the_uploads() -> None:
    ledger = ledger_of({0: BARE, 1: BARE, PUBLISHED: CENTRAL}, {0: BARE, PUBLISHED: CENTRAL})
    assert ledger.server.epsilon(DELTA, "exact") == ledger.epsilon(DELTA, "exact") == math.inf
    assert ledger.outsiders.epsilon(DELTA, "exact") == exact([CENTRAL] * 2, DELTA)
    assert Exposure(ledger.outsiders).mu() == pytest.approx(math.sqrt(2) / 3)
    (outside,) = ledger.outsiders.guarantees(DELTA, "exact")
    assert (outside.unit, outside.trust, outside.clients) == ("client", "central", 2)
    local, central = sorted(ledger.guarantees(DELTA, "exact"), key=lambda g: g.trust, reverse=True)
    assert (local.unit, local.epsilon, central.epsilon) == (None, math.inf, outside.epsilon)


def test_the_one_number_of_a_view_is_infinite_where_kinds_do_not_compose_and_states_each() -> None:
    ledger = ledger_of({0: UPLOAD}, {0: UPLOAD, PUBLISHED: replace(UPLOAD, unit="client", trust="central")})
    one, each = ledger.outsiders.guarantee(DELTA, "exact"), ledger.outsiders.guarantees(DELTA, "exact")
    assert one.epsilon == math.inf and (one.unit, one.relation, one.trust) == (None, None, "central and local")
    assert one.clients == 1 and one.declared == ("labels",)
    assert [g.epsilon for g in each] == [exact([UPLOAD], DELTA)] * 2
    assert all(str(g) in one.unprotected[0] and str(g) in str(one) for g in each)
    (only,) = ledger.server.guarantees(DELTA, "exact")
    assert ledger.server.guarantee(DELTA, "exact") == only and only.epsilon == exact([UPLOAD] * 2, DELTA)


# --- a ledger that grows ---


@settings(deadline=None)
@given(ledger=ledgers)
def test_what_is_spent_is_the_worst_client_s_by_a_second_reading_of_the_entries(ledger: Ledger) -> None:
    covered = {e.round for e in ledger.entries if e.client == PUBLISHED}
    clients = {e.client for e in ledger.entries} - {PUBLISHED} or {PUBLISHED}
    uploads = {c: [e for e in ledger.entries if e.client == c != PUBLISHED] for c in clients}
    published = [e.event for e in ledger.entries if e.client == PUBLISHED]
    seen = {
        "server": [[e.event for e in uploads[c]] for c in clients],
        "outsiders": [[e.event for e in uploads[c] if e.round not in covered] + published for c in clients],
    }
    for view, exposures in seen.items():
        together = accountants.composable(itertools.chain(*exposures))
        wanted = max(exact(x, DELTA) for x in exposures) if together else math.inf
        assert getattr(PrivacyOdometer(ledger), view).epsilon(DELTA, "exact") == pytest.approx(wanted)


@settings(deadline=None)
@given(ledger=ledgers)
def test_following_a_ledger_round_by_round_gives_the_same_numbers(ledger: Ledger) -> None:
    odometer, grown = PrivacyOdometer(), Ledger()
    for number in range(4):
        grown = Ledger((*grown.entries, *(e for e in ledger.entries if e.round == number)))
        odometer.follow(grown)
        odometer.follow(grown)  # nothing is added twice
        assert odometer.bytes_up == grown.bytes_up
        for view in ("server", "outsiders"):
            one, other = (getattr(o, view).epsilon(DELTA, "exact") for o in (odometer, PrivacyOdometer(grown)))
            assert one == other
    assert grown == ledger


def test_a_ledger_is_followed_by_whole_rounds() -> None:
    """What is published makes up for uploads of its round, which would have been counted."""
    uploads = ledger_of({0: BARE})
    with pytest.raises(ValueError, match="round 0 has been counted already"):
        PrivacyOdometer(uploads).follow(uploads.with_published(0, [CENTRAL]))


def test_another_ledger_is_not_followed() -> None:
    odometer = PrivacyOdometer(ledger_of({0: UPLOAD}, {0: UPLOAD}))
    for other in (ledger_of({0: UPLOAD}, {0: BARE}), ledger_of({0: UPLOAD}), Ledger()):
        with pytest.raises(ValueError, match="not the one that was followed"):
            odometer.follow(other)


# --- recording ---------------------------------------------------------------------------------------------


def test_a_round_is_recorded_once() -> None:
    ledger = ledger_of({0: UPLOAD, PUBLISHED: CENTRAL}, {0: UPLOAD})
    with pytest.raises(ValueError, match="client 0 already has an upload in round 1"):
        ledger.with_uploads(1, [(0, Nothing(), 0)])
    with pytest.raises(ValueError, match="round 0 is late"):
        ledger.with_uploads(0, [(1, UPLOAD, 0)])
    with pytest.raises(ValueError, match="round 0 is late"):
        ledger.with_published(0, [CENTRAL])
    published = ledger.with_published(1, [CENTRAL, CENTRAL])
    with pytest.raises(ValueError, match="round 1 is already published"):
        published.with_published(1, [CENTRAL])
    assert published.with_published(1, []) == published


def test_trust_is_checked_at_the_gate() -> None:
    for event in (CENTRAL, NonPrivate("weights", "central")):
        with pytest.raises(ValueError, match="must have local or aggregate trust"):
            Ledger().with_uploads(0, [(0, event, 1)])
    with pytest.raises(ValueError, match="client must be >= 0"):
        Ledger().with_uploads(0, [(PUBLISHED, UPLOAD, 1)])
    for event in (UPLOAD, Nothing(), BARE):
        with pytest.raises(ValueError, match="central trust"):
            Ledger().with_published(0, [event])


def test_bytes_are_counted_by_client() -> None:
    ledger = Ledger().with_uploads(0, [(0, UPLOAD, 5)]).with_uploads(0, [(1, BARE, 7)]).with_published(0, [CENTRAL])
    ledger = ledger.with_uploads(1, [(0, Nothing(), 0)]).with_uploads(2, [(0, UPLOAD, 11)])
    assert ledger.bytes_up == 23
    assert ledger.bytes_by_client == {0: 16, 1: 7}


def test_json_keeps_every_field() -> None:
    event = Gaussian(0.1, "client", "add_remove", "local", 0.25, 7, ("labels", "counts"))
    silent = replace(event, std_over_sensitivity=math.inf)
    ledger = ledger_of({3: event, 4: silent, 5: NonPrivate("prompts"), 6: Nothing()})
    assert Ledger.from_json(ledger.to_json()).entries == ledger.entries


def test_an_event_of_many_clients_is_written_once() -> None:
    event = Gaussian(0.1, "client", "replace_one", "local")

    def size(clients: int) -> int:
        return len(Ledger().with_uploads(3, [(client, event, 137_000) for client in range(clients)]).to_json())

    assert size(2_000) - size(1_000) < 25 * 1_000


# --- words and tables --------------------------------------------------------------------------------------


def test_a_guarantee_is_one_line_that_says_everything() -> None:
    pfdm = depth.release_event(15.0, 3.8943e-3)
    ledger = ledger_of({0: replace(pfdm, declared=("labels",)), 1: pfdm})
    assert [str(g) for g in ledger.guarantees(1e-5, "exact")] == [
        "epsilon 9.25 (per example, replace-one, local trust, delta 1e-05, exact accountant; "
        "public by declaration: labels)"
    ]
    published = ledger_of({PUBLISHED: CENTRAL}).guarantees(1e-6, "rdp")
    epsilon = math.ceil(100 * rdp([CENTRAL], 1e-6)) / 100
    assert [str(g) for g in published] == [
        f"epsilon {epsilon:.2f} (per client, add-remove, central trust, delta 1e-06, rdp accountant)"
    ]


def test_what_was_learned_before_round_0_is_seen_by_both_and_covered_by_nothing() -> None:
    learned = NonPrivate("bins, taken from all records")
    ledger = ledger_of({0: UPLOAD, 1: UPLOAD, PUBLISHED: CENTRAL}, {0: UPLOAD})
    charged = ledger.with_setup([0, 1], learned)
    assert charged.with_setup([0, 1], learned) == charged and ledger.with_setup([0, 1], None) == ledger
    assert [e.round for e in charged.entries[:3]] == [SETUP, SETUP, 0] and charged.entries[2:] == ledger.entries
    for view in (charged.server, charged.outsiders):
        worst = max(view.guarantees(DELTA, "rdp"), key=lambda g: g.epsilon)
        assert worst.epsilon == math.inf and worst.unprotected == (learned.what,)
    assert charged.epsilon(DELTA, "rdp") == math.inf > ledger_of({0: UPLOAD}).epsilon(DELTA, "rdp")
    rows = {row["client"]: row for row in charged.table(DELTA)}
    assert rows[1]["epsilon_exact"] == math.inf and rows[1]["rounds"] == 1 and learned.what in rows[1]["events"]


def test_no_guarantee_says_why() -> None:
    silent = replace(UPLOAD, std_over_sensitivity=0.0)
    for event, why in ((BARE, "weights sent as they are"), (silent, "noise of scale 0")):
        (guarantee,) = ledger_of({0: event}).guarantees(DELTA, "exact")
        assert str(guarantee) == f"epsilon inf (no guarantee: {why})"


def test_the_table_has_a_row_per_client_and_every_accountant() -> None:
    sampled = Gaussian(1.0, "example", "add_remove", "local", 0.1, 5)
    ledger = ledger_of({0: UPLOAD, 1: sampled, 2: Nothing(), PUBLISHED: CENTRAL}, {0: UPLOAD, 2: BARE})
    rows = {row["client"]: row for row in ledger.table(DELTA)}
    assert list(rows) == [PUBLISHED, 0, 1, 2]
    for name, bound in accountants.ACCOUNTANTS.items():
        assert rows[0][f"epsilon_{name}"] == bound([UPLOAD] * 2, DELTA)
        assert rows[2][f"epsilon_{name}"] == math.inf
        assert rows[PUBLISHED][f"epsilon_{name}"] == bound([CENTRAL], DELTA)
    assert rows[1]["epsilon_exact"] is rows[1]["epsilon_theorem"] is None
    assert rows[1]["epsilon_rdp"] == rdp([sampled], DELTA)
    assert [(rows[c]["rounds"], rows[c]["bytes"]) for c in (0, 1, 2)] == [(2, 20), (1, 10), (1, 20)]
    assert rows[0]["events"].startswith("2 x Gaussian noise 1 x sensitivity (per example, replace-one, local trust")
    assert "Poisson sampling 0.1, 5 steps" in rows[1]["events"]
    assert rows[2]["events"] == "1 x weights sent as they are"
    assert len({tuple(row) for row in rows.values()}) == 1


def test_an_accountant_without_a_theorem_is_refused_not_guessed() -> None:
    ledger = ledger_of({0: Gaussian(1.0, "example", "add_remove", "local", 0.1)})
    for ask in (ledger.epsilon, ledger.guarantees):
        with pytest.raises(Unsupported):
            ask(DELTA, "exact")
