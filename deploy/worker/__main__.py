"""`python -m deploy.worker --settings JSON`: one worker process of the role in its settings. See worker/boot.py."""

from runtime.process_life import die_with_parent, quick_imports

die_with_parent()  # before the imports below, which take seconds

with quick_imports():
    import decode.start
    import prefill.start
    import unified.start
    from protocol.messages_gateway import Role
    from worker.boot import main

if __name__ == "__main__":
    main({Role.PREFILL: prefill.start.build, Role.DECODE: decode.start.build, Role.UNIFIED: unified.start.build})
