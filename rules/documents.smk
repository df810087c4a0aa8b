# The own files of the published documents that the presets follow, from the tables and the rounds that these name.

for document in DOCUMENTS:

    rule:
        name:
            f"document_{document.replace('-', '_')}"
        input:
            expand("results/{table}", table=TABLES),
        output:
            document_paths([document]),
        log:
            f"logs/aggregate/document.{document}.log",
        params:
            code=code("documents"),
            document=document,
        shell:
            "$PYTHON $SCRIPTS/documents.py --document {params.document} --results results"
            " --output-dir results/documents/{params.document} 2> {log:q}"
