"""The script that the trainer starts, with a socket as stdin: ``start.py OWNER_PID PACKAGE_FOLDER [FOLDERS]``."""

if __name__ == "__main__":
    import gc

    gc.disable()  # during imports it would run repeatedly and find nothing

    import importlib
    import os
    import sys

    os.closerange(3, min(1 << 16, os.sysconf("SC_OPEN_MAX")))
    _fd = os.dup(0)
    _null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(_null, 0)
    os.close(_null)
    _owner, _folder, *_more = sys.argv[1:]
    sys.path += _more  # with -S, nothing else adds the library directories
    sys.path.insert(0, _folder)
    importlib.import_module("antifreeze")  # the trainer's copy: another one may be installed
    sys.path.append(sys.path.pop(0))
    from antifreeze.forkserver._server import main

    main(_fd, int(_owner))
