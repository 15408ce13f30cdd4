"""The judgement of one record: evidence, bottleneck, advice, rules and the words for them."""
