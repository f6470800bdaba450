"""What watches: each observer sees one finished DecisionRecord."""
