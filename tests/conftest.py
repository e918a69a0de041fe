"""What all tests share."""

from hypothesis import settings

# A law that holds slowly still holds: how long an example takes is the machine's affair.
settings.register_profile("rankscope", deadline=None)
settings.load_profile("rankscope")
