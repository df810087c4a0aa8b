# Results of several hosts side by side. Needs their tables alone: it plans no round and makes no table
# of this host, whose own are no input even where they are named.


localrules:
    cross_stack,


rule cross_stack:
    input:
        results=fetched("results.csv"),
        summaries=fetched("summary.json"),
        failures=lambda w: [path for path in steps.brought(matrix, "failures.csv") if "://" not in path],
    output:
        table="results/cross_stack.csv",
        refused="results/cross_stack_refused.csv",
        page="results/cross_stack.html",
    log:
        "logs/cross_stack.log",
    params:
        folders=lambda w: matrix.config.cross_stack.results,
        own=lambda w: steps.own_folders(matrix),
        own_tables=lambda w: steps.own_tables(matrix),
        reference=lambda w: f"--reference {name}" if (name := matrix.config.cross_stack.reference) else "",
        code=code("cross_stack"),
        captions=lambda w: text_hash("docs/captions"),
    shell:
        "$PYTHON $SCRIPTS/cross_stack.py --folders {params.folders:q} --own {params.own:q}"
        " --results {input.results:q} {params.reference}"
        " --caption $SCRIPTS/../docs/captions/cross_stack.rst --output {output.table:q} --refused {output.refused:q}"
        " --page {output.page:q} --log {log:q}"
