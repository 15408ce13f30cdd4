"""One self-contained HTML page for a report: layout, charts as SVG, style and script."""
