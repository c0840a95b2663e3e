"""targets.ranks: processes that run one model together: they meet, compare what they run, and see who has ended."""
