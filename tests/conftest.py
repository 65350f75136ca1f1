"""What holds for every test."""

from hypothesis import settings

# Examples take as long as the machine lets them: a busy one must not fail a test.
settings.register_profile("slotdeck", deadline=None)
settings.load_profile("slotdeck")
