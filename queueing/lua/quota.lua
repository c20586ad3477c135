-- Part 13: a tenant's quotas: what is asked of its account. memory_quotas.py says the same in Python.

local SOON_US = 1000000 -- a wait for the next of the tenant's jobs to start or end: nobody knows when

-- The limit that refuses, and the microseconds until it may not, the longest wait if several do; nil: none does.
-- What is larger than a limit of tokens in the queue or per minute passes when nothing else counts against it: it could
-- never pass otherwise. A day's budget is never overdrawn by what a job said it may take.
local function refusal(tag, account, tokens, limits, now)
  local by, longest = nil, 0
  local function refuse(limit, wait)
    if wait > longest then by, longest = limit, wait end
  end
  if limits.concurrency
    and on(tag, 'ZCOUNT', 'inf', '(' .. digits(in_ms(now)), '+inf') >= limits.concurrency then
    refuse('concurrency', SOON_US)
  end
  if limits.queued_jobs and account.waiting_jobs >= limits.queued_jobs then refuse('queued_jobs', SOON_US) end
  if limits.queued_tokens and account.waiting_tokens > 0
    and account.waiting_tokens + tokens > limits.queued_tokens then
    refuse('queued_tokens', SOON_US)
  end
  if limits.daily_tokens then
    if account.spent + tokens > limits.daily_tokens then
      refuse('daily_tokens', (account.day + 1) * DAY_US - now)
    elseif account.spent + account.held + tokens > limits.daily_tokens then
      refuse('daily_tokens', SOON_US)
    end
  end
  if limits.rpm then refuse('rpm', until_level(account.requests, (limits.rpm - 1) * UNITS, now)) end
  if limits.tpm then
    refuse('tpm', until_level(account.tokens, (limits.tpm - math.min(tokens, limits.tpm)) * UNITS, now))
  end
  return by, longest
end

local KEPT_FOR = {'lease_ms', 1, MAX_MS}
local MOST = 1e12 -- tokens: far beyond any job, and sums of them stay whole
local RPM, TPM = {'rpm', 1, 1e8, false}, {'tpm', 1, 1e8, false}
local RESERVE_FIGURES = {
  KEPT_FOR, {'tokens', 0, MOST}, {'prompt_tokens', 0, MOST}, RPM, TPM, {'concurrency', 1, MOST, false},
  {'queued_jobs', 1, MOST, false}, {'queued_tokens', 1, MOST, false}, {'daily_tokens', 1, MOST, false},
}

-- An error reply for a text that cannot stand in a reservation; nil: it can.
local function wrong_name(what, text)
  if not (text and text:match('^%S+$')) then return invalid(what:gsub(' ', '_'), 'must be a text without spaces') end
end

-- FCALL headway_reserve 1 {t:tenant} <job id> <nonce> <lease ms> <tokens> <prompt tokens>, then the limits or '':
--       <rpm> <tpm> <concurrency> <queued jobs> <queued tokens> <daily tokens>
-- -> ok | again (this job has one) | the limit that refuses; the reservation's nonce; ms to wait;
--    requests left, ms until all are; tokens left, ms until all are; tokens of the day that nothing has or holds
register('headway_reserve', function(keys, args)
  local tag, job, nonce = keys[1], args[1], args[2]
  local problem = wrong_name('job id', job) or wrong_name('nonce', nonce)
  if problem then return problem end
  local found
  found, problem = figures(args, 3, RESERVE_FIGURES)
  if problem then return problem end
  local lease_ms, tokens = found[1], found[2]
  local limits = {rpm = found[4], tpm = found[5], concurrency = found[6], queued_jobs = found[7],
    queued_tokens = found[8], daily_tokens = found[9]}
  local now, outcome, wait = now_us(), 'ok', 0
  local account = open_account(tag, now)
  sweep(tag, account, now)
  set_rate(account.requests, limits.rpm, now)
  set_rate(account.tokens, limits.tpm, now)
  local r = reservation(tag, job)
  if r then
    outcome, nonce = 'again', r.nonce
    if r.state == 'g' then
      revive(tag, account, job, r, 'q', lease_ms, now)
    else
      let_go(tag, account, job, r)
      hold(tag, account, job, r, r.state, lease_ms, now)
    end
  else
    local by, longest = refusal(tag, account, tokens, limits, now)
    if by then
      outcome, wait = by, math.ceil(longest / 1000)
    else
      r = {tokens = tokens, prompt = found[3], since = in_ms(now), nonce = nonce,
        filled = limits.tpm and math.min(tokens, limits.tpm) or tokens}
      fill(account.requests, 1, now)
      fill(account.tokens, r.filled, now)
      hold(tag, account, job, r, 'q', lease_ms, now)
    end
  end
  close_account(tag, account)
  local requests, requests_ms = left(account.requests, limits.rpm, now)
  local tokens_left, tokens_ms = left(account.tokens, limits.tpm, now)
  local today = limits.daily_tokens and digits(math.max(0, limits.daily_tokens - account.spent - account.held)) or ''
  return {outcome, nonce, digits(wait), requests, requests_ms, tokens_left, tokens_ms, today}
end)

-- Calls act(account, now, job, reservation, …) for each group of `size` arguments, `job` and `nonce` in front, that
-- names a reservation we have; returns how many.
local function for_each(tag, args, first, size, act)
  local now, count = now_us(), 0
  local account = open_account(tag, now)
  for at = first, #args, size do
    local r = reservation(tag, args[at])
    if r and r.nonce == args[at + 1] then
      act(account, now, args[at], r, args[at + 2], args[at + 3])
      count = count + 1
    end
  end
  close_account(tag, account)
  return count
end

-- FCALL headway_unreserve 1 {t:tenant}, then <job id> <nonce> for each -> how many were given back
register('headway_unreserve', function(keys, args)
  local tag, problem = keys[1], ragged(args, 1, 'job id, nonce')
  if problem then return problem end
  return for_each(tag, args, 1, 2, function(account, now, job, r)
    if r.state ~= 'g' then
      let_go(tag, account, job, r)
      give_back(account, r, now)
    end
    forget(tag, job, r.state)
  end)
end, {'allow-oom'})

local SETTLED = {{'prompt_tokens', 0, 1e15}, {'completion_tokens', 0, 1e15}} -- what a finish may say

-- FCALL headway_settle 1 {t:tenant}, then <job id> <nonce> <prompt tokens> <completion tokens> for each
-- -> how many were settled by this call: a second one finds nothing
register('headway_settle', function(keys, args)
  local tag, problem = keys[1], ragged(args, 1, 'job id, nonce, prompt tokens, completion tokens')
  for at = 3, #args, 4 do
    problem = problem or select(2, figures(args, at, SETTLED))
  end
  if problem then return problem end
  return for_each(tag, args, 1, 4, function(account, now, job, r, prompt, completion)
    prompt, completion = math.min(tonumber(prompt), MOST), math.min(tonumber(completion), MOST)
    local used = prompt + completion
    -- Without a worker's word nobody counted the prompt; it was computed if anything was published.
    if prompt == 0 and used > 0 then used = used + r.prompt end
    if r.state == 'g' then
      fill(account.requests, 1, now)
      fill(account.tokens, used, now)
    else
      let_go(tag, account, job, r)
      fill(account.tokens, used - r.filled, now)
    end
    account.spent = account.spent + used
    forget(tag, job, r.state)
  end)
end, {'allow-oom'})

-- FCALL headway_keep 1 {t:tenant} <lease ms>, then <job id> <nonce> <q or r> for each: this job lives, and waits or
-- runs -> how many reservations go on; lapsed ones are made again
register('headway_keep', function(keys, args)
  local tag, lease, problem = keys[1], figures(args, 1, {KEPT_FOR})
  problem = problem or ragged(args, 2, 'job id, nonce, q or r')
  for at = 4, #args, 3 do
    if args[at] ~= 'q' and args[at] ~= 'r' then problem = problem or invalid('state', 'must be q or r') end
  end
  if problem then return problem end
  return for_each(tag, args, 2, 3, function(account, now, job, r, state)
    if r.state == 'g' then
      revive(tag, account, job, r, state, lease[1], now)
    else
      let_go(tag, account, job, r)
      hold(tag, account, job, r, state, lease[1], now)
    end
  end)
end, {'allow-oom'})

-- FCALL headway_reservations 1 {t:tenant} <ms> <limit> [<skip>]: those whose lease ends within so many ms, the next
-- first; '' instead: those that wait, the oldest first; 'gone': those that lapsed, the latest first; without the first
-- <skip> of them -> how many are in flight, then <job id> <nonce> for each
register('headway_reservations', function(keys, args)
  local tag, now, jobs = keys[1], now_us(), nil
  local found, problem = figures(args, 2, {{'limit', 1, 1e6}, {'skip', 0, MOST, 0}})
  local within = {0}
  if not problem and args[1] ~= 'gone' then within, problem = figures(args, 1, {{'within_ms', 0, MAX_MS, 0}}) end
  if problem then return problem end
  local limit, skip, account = found[1], found[2], open_account(tag, now)
  if check_account(tag, account, now) then close_account(tag, account) end
  if args[1] == '' then
    jobs = on(tag, 'ZRANGE', 'wait', skip, skip + limit - 1)
  elseif args[1] == 'gone' then
    jobs = on(tag, 'ZRANGE', 'gone', skip, skip + limit - 1, 'REV')
  else
    local until_ms = digits(in_ms(now) + within[1])
    jobs = on(tag, 'ZRANGEBYSCORE', 'inf', '-inf', until_ms, 'LIMIT', skip, limit)
  end
  local reply = {digits(on(tag, 'ZCARD', 'inf'))}
  for _, job in ipairs(jobs) do
    local r = reservation(tag, job)
    if r then
      reply[#reply + 1] = job
      reply[#reply + 1] = r.nonce
    end
  end
  return reply
end, {'allow-oom'})

-- FCALL headway_account 1 {t:tenant} <rpm or ''> <tpm or ''>
-- -> in flight, waiting jobs, waiting tokens, tokens held, tokens spent today; left as `reserve` says it
register('headway_account', function(keys, args)
  local tag, now = keys[1], now_us()
  local found, problem = figures(args, 1, {RPM, TPM})
  if problem then return problem end
  local rpm, tpm, account = found[1], found[2], open_account(tag, now)
  check_account(tag, account, now)
  sweep(tag, account, now)
  set_rate(account.requests, rpm, now)
  set_rate(account.tokens, tpm, now)
  close_account(tag, account)
  local requests, requests_ms = left(account.requests, rpm, now)
  local tokens, tokens_ms = left(account.tokens, tpm, now)
  return {digits(on(tag, 'ZCARD', 'inf')), digits(account.waiting_jobs), digits(account.waiting_tokens),
    digits(account.held), digits(account.spent), requests, requests_ms, tokens, tokens_ms}
end, {'allow-oom'})
