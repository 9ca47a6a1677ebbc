"""Turn frames and series into signals (step changes, gaps, outliers, stragglers) as events; pure."""
