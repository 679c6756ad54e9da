"""The learner's own record: guesses before a measurement, exercises passed, what comes next."""
