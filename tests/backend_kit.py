"""What tests of whatever computes have in common."""


def greedy(slot, ids, count):
    """The steps of `count` tokens, each the one that goes on from those before it."""
    step = slot.forward_tokens(ids, sample=True)
    for number in range(1, count + 1):
        yield step
        if number < count:
            step = slot.forward_tokens((step.token,), sample=True)
