"""observe: what ran: records in; tables, traces, comparisons and reports out."""
