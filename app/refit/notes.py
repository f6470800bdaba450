"""What a person should be told about the policies that were fitted."""

from collections.abc import Mapping

from app.decision.artifact import PolicyFit
from app.refit.foretell import Foretellers
from app.refit.ledger import is_fixed


def policy_notes(fits: Mapping[str, PolicyFit], foretellers: Foretellers) -> list[str]:
    """What each policy drops, does early, or could not certify."""
    notes = []
    graded = fits["graded"].thresholds
    early = graded.early
    if early is None and (foretellers.foresight or foretellers.exits):
        notes.append("graded: nothing is worth deciding before a probe is whole")
    if early is not None and foretellers.exits and not early.exits:
        notes.append("graded: no probe is worth cutting short")
    if early is not None:
        without = f"without a probe where the question's own p0 is below {early.unasked:.3f}" if early.unasked else ""
        after = ", ".join(str(length) for length, _ in early.exits)
        cut = f"cutting hopeless probes short after {after} tokens" if early.exits else ""
        notes.append(f"graded: decides {' and '.join(part for part in (without, cut) if part)}")
    # A fixed action drops the others for want of a certificate, not of worth: that is said below.
    elif is_fixed(graded) is None:
        if graded.tau0 == graded.tau1:
            notes.append("graded: k=1 is not worth choosing at these thresholds, so the policy drops it")
        if graded.tau1 == 0.0:
            notes.append("graded: k=5 is not worth choosing at these thresholds, so only a missing signal reads five")
        if graded.tau0 > 1.0:
            notes.append("graded: k=0 is not worth choosing at these thresholds, so the policy drops it")
    for policy, fit in fits.items():
        fixed = is_fixed(fit.thresholds)
        if fit.certificate is not None and fixed is not None:
            more = f"; about {fit.labels_needed} labelled groups might do more" if fit.labels_needed else ""
            notes.append(f"{policy}: nothing cheaper than always-k{fixed} could be certified{more}")
    notes += [f"{policy}: not certified, {fit.why_not}" for policy, fit in fits.items() if fit.certificate is None]
    return notes
