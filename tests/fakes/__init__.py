"""Fakes and small facts that several tests share."""
