from tools.mutants.judge import main

raise SystemExit(main())
