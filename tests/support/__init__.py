"""What the tests of several folders share: frames, fake engines, real engines, terminals, small models."""
