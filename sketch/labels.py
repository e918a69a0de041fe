"""How an observed thing is written in one word, for people and patterns."""


def site_label(kind: str, name: str, slot: str = "", occurrence: int = 0) -> str:
    """The unique name of a site within its run, as `activation:blocks.0.mlp[1]#2`."""
    slot = f"[{slot}]" if slot else ""
    call = f"#{occurrence}" if occurrence else ""
    return f"{kind}:{name}{slot}{call}"
