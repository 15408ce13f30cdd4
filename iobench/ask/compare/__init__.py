"""Compare runs: comparison, history, cost, and the statistics behind them."""
