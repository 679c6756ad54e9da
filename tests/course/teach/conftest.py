"""Makes what lies beside it importable: the helpers of the lessons' tests."""
