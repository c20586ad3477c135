-- Headway's function library, part 1: names, clock, records.
--
-- Keys are described in queueing/keys.py. KEYS[1] of each function is a lane's hash tag, such as
-- {smollm2-135m:0}; every other key is derived from it, so a call touches one Cluster slot. All times are
-- this server's clock in milliseconds. Numbers travel as strings, except where redis.call formats them.

local BANDS = {'interactive', 'standard', 'batch'}
local MAX_BODY_BYTES = 1048576
local DEAD_LETTERS_KEPT = 1000
local LOG_BYTES = 2000 -- of a record's history: some thirty lost or returned claims

local function name(tag, kind, suffix)
  if suffix then return kind .. ':' .. tag .. ':' .. suffix end
  return kind .. ':' .. tag
end

-- Milliseconds with a fraction: two calls never see the same, so it also orders what came one after the other.
local function exact_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

local function now_ms() return math.floor(exact_ms()) end

local function table_of(flat)
  local fields = {}
  for at = 1, #flat, 2 do fields[flat[at]] = flat[at + 1] end
  return fields
end

-- Whether a number is one that we can have written.
local function is_sane(value) return value ~= nil and value > -1e15 and value < 1e15 end

local function number(text)
  local value = tonumber(text)
  return is_sane(value) and value or 0
end

local MAX_MS = 1e12 -- some thirty years: more is a mistake, and the server's own arithmetic would refuse it

local function invalid(param, message)
  return redis.error_reply('HEADWAYINVALID ' .. param .. ': ' .. message)
end

-- The whole numbers at args[at] and after it, asked for before the first write: an argument that fails halfway leaves
-- half of what it was to write. `wanted`: a list of {name, least, most, default}; without a default it must be there,
-- with false as its default it may be missing.
-- nil and an error reply if one is not a number within its bounds.
local function figures(args, at, wanted)
  local found = {}
  for place, each in ipairs(wanted) do
    local text = args[at + place - 1]
    local value = tonumber(text)
    if text == nil or text == '' then value = each[4] end
    if value ~= false then
      if not (value and value >= each[2] and value <= each[3]) then -- not a number, or NaN, is neither
        return nil, invalid(each[1], 'must be a number from ' .. each[2] .. ' to ' .. each[3])
      end
      value = math.floor(value)
    end
    found[place] = value
  end
  return found
end

-- An error reply if the arguments from args[first] on are not in whole groups, each of these parts; else nil.
local function ragged(args, first, parts)
  local _, commas = parts:gsub(',', '')
  if (#args - first + 1) % (commas + 1) ~= 0 then return invalid('arguments', 'must come in groups of ' .. parts) end
end

local LEASE = {'lease_ms', 1, MAX_MS}
local STREAM_KEPT, RECORD_KEPT = {'stream_retention_ms', 1, MAX_MS}, {'record_retention_ms', 1, MAX_MS}

local function whole(value) return string.format('%.0f', value) end

-- Deletes a key of a type that is not ours, with a note among the dead letters.
local function replace(tag, key)
  local found = redis.call('TYPE', key).ok
  redis.call('DEL', key)
  local kind = key:match('^(%a+):')
  if kind == 'q' or kind == 'back' or kind == 'lease' or kind == 'turn' then -- jobs were in it: see restore.lua
    redis.pcall('HSET', name(tag, 'lane'), 'lost', 1)
  end
  redis.pcall('XADD', name(tag, 'dlq'), 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'job', '', 'tenant', '',
    'reason', 'wrong_type: ' .. found .. ' deleted: ' .. key, 'attempts', '0', 'tokens', '0')
end

-- One command on a key that jobs or processes share. If somebody filled the key with another type, each of our calls
-- would fail, and in the middle, when a job has already left its queue: so the key is replaced and the command repeated.
local function shared(tag, command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if reply.err:find('WRONGTYPE', 1, true) then replace(tag, key) end
    return redis.call(command, key, ...)
  end
  return reply
end

local function is_job_key(text)
  return type(text) == 'string' and #text <= 64 and text:match('^[%w_%-]+$') ~= nil
end

local STATES = {queued = true, running = true, finished = true}

-- A job's record as a table, or nil. A key of another type is not ours to keep: it would fail every call. One whose
-- state is none that we wrote says nothing, as if it were not there.
local function load_record(tag, key)
  local j = name(tag, 'j', key)
  local flat = redis.pcall('HGETALL', j)
  if flat.err then
    redis.call('DEL', j)
    return nil
  end
  local record = table_of(flat)
  return STATES[record.state] and record or nil
end

-- Whether a job of this key was accepted. What anybody else put in its record's place goes.
local function is_taken(tag, key)
  local j = name(tag, 'j', key)
  local found = redis.call('TYPE', j).ok
  if found ~= 'hash' and found ~= 'none' then redis.call('DEL', j) end
  return found == 'hash'
end

local function is_queued(record) return record.state == 'queued' end
local function is_running(record) return record.state == 'running' end

-- Whether a claim token is the one under which the job runs now.
local function owns(record, token)
  return record ~= nil and is_running(record) and token ~= '' and record.token == token
end

local function is_cancelled(record)
  return record.cancel ~= nil and record.cancel ~= ''
end

local function is_past_deadline(record, now)
  local deadline = number(record.deadline)
  return deadline > 0 and deadline <= now
end

local function tenant_of(record) return record.tenant or 'default' end

local function band_of(record)
  for _, band in ipairs(BANDS) do
    if record.band == band then return band end
  end
  return 'standard'
end

-- Readers wait for these; whoever misses one finds the entries by polling.
local function hint(tag, keys)
  if #keys > 0 then redis.call('PUBLISH', 'hint:' .. tag, table.concat(keys, ' ')) end
end

local function register(function_name, callback, flags)
  local function checked(keys, args)
    if #keys ~= 1 or not keys[1]:find('^{[^{}]+}$') then
      return invalid('KEYS', 'give one, the hash tag that is part of every key, such as {smollm2-135m:0}')
    end
    return callback(keys, args)
  end
  redis.register_function{function_name = function_name, callback = checked, flags = flags or {}}
end
