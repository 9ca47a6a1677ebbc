"""Turn frames into plots: hvPlot, HoloViews or Bokeh objects; no reading, no Panel, one theme."""
