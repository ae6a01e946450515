"""Settings of the protocol's property tests."""

from hypothesis import settings

# No deadline: how busy a machine is must not decide a test.
settings.register_profile("fdtc", deadline=None, max_examples=60)
settings.load_profile("fdtc")
