"""Sabotages of log-probabilities: of which token they are, and that each token has them once."""

from tests.mutants.mutant import Mutant

FORMULAS = "tests/model/test_logprobs.py"
SCHEDULES = "tests/explore/test_logprobs.py"
ANSWERS = "tests/gateway/test_logprobs.py"
MESSAGES = "tests/protocol/test_logprobs.py"
RECORDS = "tests/gateway/test_requests.py"
TRANSLATION = "tests/gateway/test_translate.py"

LOGPROBS = (
    Mutant(
        "log-probabilities are those of the row beside",
        "scheduler/execution/sampling_columns.py SamplingColumns.logprobs",
        "int64_column(list(asking), device)",
        "int64_column([(row + 1) % len(self.draws) for row in asking], device)",
        "one request is told of another's tokens",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "log-probabilities of a tree are those of its first nodes",
        "logprobs_along",
        "nodes_ANW.gather(...)",
        "nodes_ANW[:, : path_AS.shape[1]]",
        "the path is told of branches that are not kept",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "log-probabilities of all runs lie one behind another",
        "Launch.logprobs_of",
        "start += size",
        "start += len(run)",
        "a row has more places than its run has tokens",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "the last message forgets the log-probabilities of first tokens",
        "PrefillWorker._on_first_tokens",
        "self._sender.finish(job.target, tuple(tokens), stamps, job.num_cached, hidden, job.logprobs)",
        "self._sender.finish(job.target, tuple(tokens), stamps, job.num_cached, hidden)",
        "decode's repeat of the first token may arrive before prefill's message",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "a cut run keeps the log-probabilities of what is cut",
        "TokenStream.add",
        "logprobs = logprobs.part(0, len(taken))",
        "pass",
        "there are more than tokens",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "outputs that are drawn once more are told again",
        "Results.take",
        "logprobs[0] = __rest",
        "pass",
        "the tokens behind them get theirs",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "a run has the log-probabilities of its row's last places",
        "Launch.logprobs_of",
        "words[start : start + len(run), : 2 + 2 * num_top]",
        "words[start + size - len(run) : start + size, : 2 + 2 * num_top]",
        "behind the end of a run are places that the target has not confirmed",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "decode repeats the first token without its log-probability",
        "DecodeWorker._prebuild",
        "self._take_first_tokens(request, request.first_tokens, request.first_logprobs)",
        "self._take_first_tokens(request, request.first_tokens, ())",
        "it may arrive before prefill's message",
        tests=(SCHEDULES,),
    ),
    Mutant(
        "what comes again has its log-probabilities again",
        "ChoiceRecord._take",
        "checked(...)[num_known - news.seq :]",
        "checked(news.logprobs, self.logprobs, len(news.token_ids))",
        "a repeat or a retry would tell the client twice",
        tests=(RECORDS,),
    ),
    Mutant(
        "what came early loses its log-probabilities",
        "ChoiceRecord.accept",
        "fresh.logprobs + more.logprobs",
        "fresh.logprobs",
        "decode's tokens may come before prefill's first one",
        tests=(RECORDS,),
    ),
    Mutant(
        "all rows of a batch get processed ones if one asks for them",
        "_logprobs",
        "torch.where(asked.processed_N[:, None], __drawn, logits_NV)",
        "__drawn",
        "raw ones are those before bans and masks",
        tests=(FORMULAS,),
    ),
    Mutant(
        "raw ones are those behind rules and bans",
        "_logprobs",
        "raw_LV.index_select(0, asked.rows_N)",
        "drawn.logits_of(asked.rows_N)",
        "they are the model's own",
        tests=(FORMULAS,),
    ),
    Mutant(
        "the mode of log-probabilities is ignored",
        "Translator.__init__",
        "logprobs_mode == 'processed_logprobs'",
        "False",
        "an operator has asked for processed ones",
        tests=(TRANSLATION,),
    ),
    Mutant(
        "processed ones of greedy rows depend on the batch",
        "TorchDraws.draw",
        "torch.where(is_greedy_N1, __ruled, __masked)",
        "__masked",
        "masks cut a greedy row only beside rows that are drawn",
        tests=(FORMULAS,),
    ),
    Mutant(
        "a token leaves before its text",
        "HeldTokens.shown",
        "end <= self._num_shown",
        "True",
        "a stop string may still cut it",
        tests=(ANSWERS,),
    ),
    Mutant(
        "a stop string cuts no token",
        "HeldTokens.rest",
        "not is_cut",
        "True",
        "tokens without text are told",
        tests=(ANSWERS,),
    ),
    Mutant(
        "a number that is no log-probability passes",
        "check_tokens",
        "all(map((0.0).__ge__, values))",
        "True",
        "a NaN would become invalid JSON",
        tests=(MESSAGES,),
    ),
)
